"""Errors of the kernel backends."""


class UnavailableError(Exception):
    """A backend cannot run on this machine: the message is the reason."""
