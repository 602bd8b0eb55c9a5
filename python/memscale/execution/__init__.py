"""Carries out a plan on a model: hooks, calls of layers, what runs again in backward."""
