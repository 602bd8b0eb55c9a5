"""What a user can see of a run: logs, counters, reports."""
