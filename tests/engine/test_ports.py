from __future__ import annotations

import socket
from pathlib import Path

import pytest

from engine import ports
from engine.ports import LOWEST, free_port


def test_a_port_is_free_and_below_those_of_outgoing_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    range_of_the_system = tmp_path / "ip_local_port_range"
    range_of_the_system.write_text("20000\t60999\n")
    monkeypatch.setattr(ports, "_EPHEMERAL", range_of_the_system)
    port = free_port()
    assert LOWEST <= port < 20_000
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("text", ["", "x y", "1024\t65535\n"])
def test_where_the_system_leaves_no_room_any_port_will_do(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    range_of_the_system = tmp_path / "ip_local_port_range"
    range_of_the_system.write_text(text)
    monkeypatch.setattr(ports, "_EPHEMERAL", range_of_the_system)
    assert LOWEST <= free_port() < 32_768


def test_one_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("random.SystemRandom.randrange", lambda *_: port)
        with pytest.raises(OSError, match="none of 1000 ports"):
            free_port()
