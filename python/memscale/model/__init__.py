"""What is found on a user's model and put back: layers, caches, cached weights, divided parameters, its state."""
