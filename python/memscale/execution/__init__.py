"""Carries out a plan on a model: hooks, calls of layers, replays in backward."""
