"""A run made visible: logs, metrics, the history of its steps."""
