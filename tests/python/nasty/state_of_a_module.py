"""A user's module with state, for a case of cases_traces.py that writes to it."""

CALLS = 0
NOTES = 0


def note() -> None:
    global NOTES
    NOTES += 1
