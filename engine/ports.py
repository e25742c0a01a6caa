"""A port for a program that must be told one before it starts."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 1000


def free_port(host: str = "127.0.0.1") -> int:
    """A free port of ``host`` that nobody gets by chance before the program has bound it.

    Port 0 would do, but it gives a port of the range from which every outgoing connection of the machine, and everybody
    else who asks for port 0, takes one as well: this one lies below that range.

    Raises:
        OSError: none was free.
    """
    above = _first_ephemeral()
    for _ in range(_TRIES):
        port = random.SystemRandom().randrange(LOWEST, above)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"none of {_TRIES} ports of {host} from {LOWEST} to {above - 1} was free")


def _first_ephemeral() -> int:
    """Where the system's own begin (ip(7)); where they leave no room below, nothing is gained and any port will do."""
    try:
        first = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = 0
    return first if first > LOWEST + 1000 else 32_768
