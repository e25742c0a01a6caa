"""What the two sides of a comparison may be.

REV, git:REV                        engine code and settings of a revision, its artifact by its own recipe
DIR                                 an artifact folder, or another source tree (with engine/ and params.yaml)
release:NAME                        engine and artifact of releases/NAME.json
config:FILE, config:KEY=VALUE,...   this engine with other settings than params.yaml's
seam:MODULE:CLASS                   this engine with something planted (engine.seam)
bundled                             this engine with params.yaml's settings on artifacts/TIER
target:NAME                         the server that `targets` of params.yaml describes, started for each round
http://..., https://...             a server that runs already
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from engine.artifact import MANIFEST, Named, verify
from engine.config import EngineConfig
from pipeline.ab.trees import CACHE, LOCK, Tree, artifact_of, built, checkout, commit_of, git, interpreter
from pipeline.errors import SeatrialError
from pipeline.params import PARAMS, Params
from pipeline.provenance import ENGINE_ROOT, engine_identity, model_identity, quantisation_identity
from pipeline.release.record import RELEASES, Release
from pipeline.serving import bundled_server
from pipeline.targets.capabilities import Capabilities, promised
from pipeline.targets.choose import open_foreign, spec_of, url_spec
from pipeline.targets.probe import with_capabilities
from pipeline.targets.spec import BUNDLED, BundledSpec, ForeignSpec
from pipeline.targets.target import LOGS, Target

Identities = tuple[Named, Named, Named]  # model, engine, quantisation


@dataclass(frozen=True)
class Side:
    """Something that can be booted and measured; ``open`` does so.

    ``opened`` does it for another project's server, given a log; ``capabilities`` is then what that was found to have.
    ``logs``: its server is asked for the engine's own logs.
    """

    given: str
    kind: str
    identities: Identities
    settings: dict[str, Any]
    artifact: Path | None = None
    tree: Tree | None = None
    seam: str | None = None
    opened: Callable[[Path], AbstractContextManager[Target]] | None = None
    capabilities: Capabilities | None = None
    logs: bool = True

    @contextmanager
    def open(self, log: Path, engine_logs: Path | None = None) -> Iterator[Target]:
        """A fresh boot (of a URL: a fresh look), ended when the block ends.

        ``engine_logs``: where the engine writes its own logs, if it is asked for them.

        Raises:
            SeatrialError: it does not come up or answer.
        """
        if self.opened is not None:
            with self.opened(log) as target:
                yield replace(target, capabilities=self.capabilities)
            return
        assert self.artifact is not None
        more: dict[str, Any] = {} if self.tree is None else {"root": self.tree.root, "python": self.tree.python}
        options = [] if self.seam is None else ["--seam", self.seam]
        if engine_logs is not None and self.logs:
            options += ["--log-dir", str(engine_logs.absolute())]
        with bundled_server(self.artifact, self.settings, log, options=options, **more) as server:
            yield Target(
                server.base_url, server.model, *self.identities, self.settings, {}, None, server.check,
                f"{server.base_url}/health", server.process.pid, bundled=True, capabilities=promised(),
            )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """For ab.json. No path of this machine beyond what was given."""
        model, engine, quantisation = self.identities
        return {
            "given": self.given,
            "kind": self.kind,
            "commit": self.tree.commit if self.tree else None,
            "model": model.model_dump(),
            "engine": engine.model_dump(),
            "quantisation": quantisation.model_dump(),
            "settings": self.settings,
            "seam": self.seam,
            "capabilities": None if self.capabilities is None else self.capabilities.json(),
        }


@dataclass(frozen=True)
class Project:
    """Where sides are looked up: this project's settings, and the tier of those that name no artifact."""

    params: Params
    raw: dict[str, Any]
    tier: str
    cache: Path = CACHE
    lock: Path = LOCK

    @classmethod
    def here(cls, params: Params, tier: str | None, lock: Path = LOCK) -> Project:
        raw = yaml.safe_load(PARAMS.read_text(encoding="utf-8"))
        return cls(params, raw, tier or params.release.candidate, lock=lock)

    @property
    def settings(self) -> dict[str, Any]:
        return self.params.engine.model_dump(mode="json")


def side_of(given: str, project: Project) -> Side:
    """
    Raises:
        SeatrialError: it is none of the forms, or what it names is not there.
        ArtifactError: an artifact is not what its manifest says.
    """
    kind, _, rest = given.partition(":")
    if kind in _KINDS and rest:
        return _KINDS[kind](given, rest, project)
    if kind in {"http", "https"}:
        return _foreign(given, given, url_spec(given), project)
    if given == BUNDLED:
        return _bundled(given, "bundled", built(Path("artifacts") / project.tier), project.settings)
    if Path(given).is_dir():
        return _directory(given, project)
    try:
        commit_of(given)
    except SeatrialError as e:
        raise SeatrialError(
            f"{given!r} is no folder and no revision ({e}); expected REV, DIR, git:REV, release:NAME, config:FILE, "
            "config:KEY=VALUE, seam:MODULE:CLASS, bundled, target:NAME or a URL"
        ) from e
    return _revision(given, given, project)


def _bundled(given: str, kind: str, artifact: Path, settings: dict[str, Any], **more: Any) -> Side:
    manifest = verify(artifact)
    tree: Tree | None = more.get("tree")
    root = ENGINE_ROOT if tree is None else tree.root / "engine"
    engine = engine_identity(settings, root=root, seam=more.get("seam"))
    identities = (model_identity(manifest), engine, quantisation_identity(manifest))
    return Side(given, kind, identities, settings, artifact.absolute(), **more)


def _of_tree(given: str, kind: str, tree: Tree, project: Project) -> Side:
    settings = tree.params.get("engine") or {}
    artifact = artifact_of(tree, project.tier, project.raw)
    return _bundled(given, kind, artifact, settings, tree=tree, logs=_knows_logs(tree))


def _knows_logs(tree: Tree) -> bool:
    """Whether that revision's server writes the engine's logs: an option that it does not know would end it."""
    path = tree.root / "engine/server/__main__.py"
    return path.is_file() and '"--log-dir"' in path.read_text(encoding="utf-8")


def with_equal_logs(base: Side, candidate: Side) -> tuple[Side, Side]:
    """Both sides write logs or neither does, since writing takes time."""
    both = base.logs and candidate.logs
    return replace(base, logs=both), replace(candidate, logs=both)


def _revision(given: str, revision: str, project: Project) -> Side:
    return _of_tree(given, "revision", checkout(revision, cache=project.cache, lock=project.lock), project)


def _directory(given: str, project: Project) -> Side:
    path = Path(given)
    if (path / MANIFEST).is_file():
        return _bundled(given, "artifact", path, project.settings)
    if (path / "engine").is_dir() and (path / PARAMS).is_file():
        root = path.absolute()
        python = interpreter(root, cache=project.cache, lock=project.lock)
        return _of_tree(given, "tree", Tree(root, python, None), project)
    raise SeatrialError(
        f"{given} is neither an artifact (it has no {MANIFEST}) nor a source tree (engine/ and {PARAMS})"
    )


def _release(given: str, name: str, project: Project) -> Side:
    path = RELEASES / f"{name}.json"
    try:
        release = Release.model_validate_json(path.read_bytes())
    except FileNotFoundError as e:
        known = ", ".join(sorted(p.stem for p in RELEASES.glob("*.json"))) or "none"
        raise SeatrialError(f"no release {name!r}: {path} not found; released: {known}") from e
    except ValidationError as e:
        raise SeatrialError(f"{path} is not a release record: {e}") from e
    if release.evaluation.engine.name.startswith("foreign "):
        raise SeatrialError(
            f"{path} was released on {release.evaluation.engine.name}; name that server (target:NAME or a URL)"
        )
    tree = _released_tree(release, path, project)
    wanted = release.evaluation.quantisation
    artifact = Path("artifacts") / release.tier
    if not (artifact / MANIFEST).is_file() or quantisation_identity(verify(artifact)).digest != wanted.digest:
        artifact = artifact_of(tree, release.tier, project.raw)
    requested = release.evaluation.engine_requested
    side = _bundled(given, "release", artifact, requested, tree=tree, logs=_knows_logs(tree))
    if side.identities[2].digest != wanted.digest:
        raise SeatrialError(
            f"{path} was released with an artifact {wanted.name} of digest {wanted.digest[:12]}, but {artifact} is "
            f"{side.identities[2].digest[:12]}; get the released one (dvc pull at that revision) into {artifact}"
        )
    return side


def _released_tree(release: Release, path: Path, project: Project) -> Tree:
    """The commit that added the record, or one of its neighbours, whose engine is the one that was released."""
    added = git("log", "--diff-filter=A", "--format=%H", "-n", "1", "--", path.as_posix())
    tried = [added, f"{added}^"] if added else ["HEAD"]
    wanted = release.evaluation.engine
    for revision in tried:
        tree = checkout(revision, cache=project.cache, lock=project.lock)
        if engine_identity(release.evaluation.engine_requested, root=tree.root / "engine").name == wanted.name:
            return tree
    raise SeatrialError(
        f"{path} was released with engine {wanted.name}, which neither of {', '.join(r[:12] for r in tried)} has; "
        "name the revision instead (git:REV)"
    )


def _config(given: str, text: str, project: Project) -> Side:
    changes: Any
    if text.endswith((".yaml", ".yml")):
        try:
            changes = yaml.safe_load(Path(text).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as e:
            raise SeatrialError(f"{given}: {e}; expected a YAML file of engine settings") from e
    else:
        parts = [part.partition("=") for part in text.split(",")]
        try:
            changes = {k.strip(): yaml.safe_load(v) for k, _, v in parts} if all(sign for _, sign, _ in parts) else None
        except yaml.YAMLError as e:
            raise SeatrialError(f"{given}: {e}; expected KEY=VALUE with a plain value") from e
    if not isinstance(changes, dict):
        raise SeatrialError(f"{given}: expected settings such as config:kv_dtype=int8,max_num_seqs=8")
    try:
        settings = EngineConfig.model_validate(project.settings | changes).model_dump(mode="json")
    except ValidationError as e:
        raise SeatrialError(f"{given}: {e}") from e
    return _bundled(given, "config", built(Path("artifacts") / project.tier), settings)


def _seam(given: str, seam: str, project: Project) -> Side:
    return _bundled(given, "seam", built(Path("artifacts") / project.tier), project.settings, seam=seam)


def _target(given: str, name: str, project: Project) -> Side:
    spec = spec_of(project.params, name)
    if isinstance(spec, BundledSpec):
        return _bundled(given, "bundled", built(Path("artifacts") / project.tier), project.settings)
    return _foreign(given, name, spec, project)


def _foreign(given: str, name: str, spec: ForeignSpec, project: Project) -> Side:
    """Opened once before the rounds, for its identity and to ask what it can do; the rounds do not ask again."""
    opened = partial(open_foreign, name, spec, project.tier)
    with opened(LOGS / "ab-target.log") as target:
        found = with_capabilities(target).capabilities
        return Side(
            given, "server", target.identities, target.engine_requested, opened=opened, capabilities=found, logs=False
        )


_KINDS: dict[str, Callable[[str, str, Project], Side]] = {
    "git": _revision,
    "release": _release,
    "config": _config,
    "seam": _seam,
    "target": _target,
}
