"""The one error of a benchmark that its user is meant to read."""


class BenchError(Exception):
    """Says what was found, what was expected and what to do. Shown without a traceback; the exit code is 3."""
