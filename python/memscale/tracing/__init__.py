"""The stage that profiles a training step: it turns a model and its arguments into a graph."""
