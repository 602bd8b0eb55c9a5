"""Shared by all packages: walks over values, arguments, modes, the state a forward depends on, torch's own
names."""
