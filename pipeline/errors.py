"""The one error that a user is meant to read."""


class SeatrialError(Exception):
    """Says what was found, what was expected and what to do. Shown without a traceback; the exit code is not 0."""
