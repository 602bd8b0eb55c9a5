"""Shows a run to its user: logs, metrics, and the history of its steps."""
