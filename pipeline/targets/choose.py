"""From ``--target``, ``--base-url`` and params.yaml to a server that answers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from engine.config import EngineConfig
from pipeline.errors import SeatrialError
from pipeline.params import PARAMS, Params, check_tier_name
from pipeline.targets.command import started
from pipeline.targets.foreign import foreign, root_of
from pipeline.targets.spec import BUNDLED, BundledSpec, ForeignSpec, TargetSpec, UrlSpec
from pipeline.targets.target import Target, bundled

ARTIFACTS = Path("artifacts")


@dataclass(frozen=True)
class Choice:
    """Which target, for which tier. ``name``: as params.yaml has it, or the URL."""

    name: str
    spec: TargetSpec
    tier: str

    @property
    def bundled(self) -> bool:
        return isinstance(self.spec, BundledSpec)

    @contextmanager
    def open(self, config: EngineConfig, log: Path, options: Sequence[str] = ()) -> Iterator[Target]:
        """The server, started where it is ours to start, and ended at the end.

        Args:
            config, options: of the bundled engine.

        Raises:
            ArtifactError, SeatrialError: it does not come up or answer.
        """
        if isinstance(self.spec, BundledSpec):
            with bundled(ARTIFACTS / self.tier, config, log, options) as target:
                yield target
        else:
            with open_foreign(self.name, self.spec, self.tier, log) as target:
                yield target


@contextmanager
def open_foreign(name: str, spec: ForeignSpec, tier: str, log: Path) -> Iterator[Target]:
    """A server of another project: looked at where it runs already, else started and ended.

    Raises:
        ArtifactError, SeatrialError: it does not come up or answer.
    """
    if isinstance(spec, UrlSpec):
        yield foreign(spec.url, spec.model, key=spec.key, image=spec.image)
        return
    with started(name, spec, tier, log) as target:
        yield target


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--target``, ``--base-url`` and ``--model``."""
    parser.add_argument("--target", help="an entry of `targets` in params.yaml, or bundled; default: its `target`")
    parser.add_argument("--base-url", help="an OpenAI-compatible server that runs already: a target of kind url")
    parser.add_argument("--model", help="with --base-url: the model to ask for; default: the first of /v1/models")


def choose(params: Params, tier: str, target: str | None, base_url: str | None, model: str | None) -> Choice:
    """
    Raises:
        SeatrialError: options that exclude each other, an unknown target or tier, or a URL that is none.
    """
    if model is not None and base_url is None:
        raise SeatrialError(
            "--model goes with --base-url; the bundled engine serves artifacts/TIER alone, and targets name theirs"
        )
    check_tier_name(tier)
    if base_url is not None:
        if target is not None:
            raise SeatrialError(f"--base-url is a target by itself; leave out --target {target}")
        return Choice(base_url, url_spec(base_url, model), tier)
    name = params.target if target is None else target
    spec = spec_of(params, name)
    if isinstance(spec, BundledSpec):
        params.recipe_of(tier)
    return Choice(name, spec, tier)


def url_spec(base_url: str, model: str | None = None) -> UrlSpec:
    """
    Raises:
        SeatrialError: not a URL of a server, or one that holds a password.
    """
    root = root_of(base_url)
    try:
        return UrlSpec(url=root, model=model)
    except ValidationError as e:
        raise SeatrialError(e.errors()[0]["msg"].removeprefix("Value error, ")) from None


def spec_of(params: Params, name: str) -> TargetSpec:
    """
    Raises:
        SeatrialError: params.yaml has no such target.
    """
    known = {BUNDLED: BundledSpec(), **params.targets}
    if name not in known:
        raise SeatrialError(f"unknown target {name!r}; {PARAMS} has {', '.join(known)} under `targets`")
    return known[name]
