"""Functions on a user's model: they find its layers, caches, cached weights and sharded parameters, and restore
its state."""
