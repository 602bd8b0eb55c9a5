"""Trainers that own the training loop."""
