"""Python interfaces of the C stages that make a plan from graph, hardware and configuration."""
