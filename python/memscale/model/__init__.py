"""A user's model: finding its layers, caches, cached weights and sharded parameters, and restoring its state."""
