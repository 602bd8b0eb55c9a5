"""From a model and its arguments to a graph: the stage that profiles a training step."""
