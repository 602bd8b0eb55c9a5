"""Helpers that all packages share: walks over values, arguments, modes, the state that a forward depends on,
torch's own names."""
