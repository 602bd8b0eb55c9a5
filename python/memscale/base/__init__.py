"""What every room may use: walks over values, arguments, modes, what a forward depends on, torch's own names."""
