from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.server.booted import Booted, boot
from tests.tiny import make_tiny_artifact


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For requests that must not end before something was done to them: see ``booted.ENDLESS``."""
    return make_tiny_artifact(tmp_path_factory.mktemp("endless"), max_position_embeddings=32_768)


@pytest.fixture(scope="session")
def server(artifact: Path) -> Iterator[Booted]:
    with boot(artifact) as running:
        yield running
