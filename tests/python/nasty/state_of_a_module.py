"""A module of the user's, with state of its own; a case of cases_traces.py writes to it."""

CALLS = 0
NOTES = 0


def note() -> None:
    global NOTES
    NOTES += 1
