"""What a user can see of a run: logs, metrics, the history of its steps."""
