"""Where users are: trainers and launchers that own the training loop."""
