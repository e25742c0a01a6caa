"""Clients that misbehave in every way a socket allows, beside some that do not: ``python -m tests.chaos --help``."""
