"""Which package may import which, read from the source: nothing is imported, so a lazy import counts too."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# The part of the engine that the pipeline may know: what lies on disk, and a port for a child.
FORMATS = {"engine.artifact", "engine.config", "engine.ledger", "engine.ports"}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(p): p for package in ("engine", "loadtests", "pipeline") for p in (ROOT / package).rglob("*.py")}


@cache
def imports(module: str) -> frozenset[str]:
    """Dotted names that a module imports, at its top or in a function; ``from a import b`` gives a.b if that is one."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import; expected absolute ones"
            origin = node.module or ""
            inner = {f"{origin}.{alias.name}" for alias in node.names}
            found |= inner & MODULES.keys()
            if inner - MODULES.keys():
                found.add(origin)
    return frozenset(found)


def within(package: str) -> list[str]:
    return sorted(m for m in MODULES if m == package or m.startswith(f"{package}."))


def loaded_by(module: str) -> set[str]:
    """The project's own modules that importing this one can load, with the packages above each."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in MODULES:
            continue
        seen.add(name)
        waiting += [*imports(name), name.rpartition(".")[0]]
    return seen


def _tops(module: str) -> set[str]:
    return {name.partition(".")[0] for name in imports(module)}


@pytest.mark.parametrize(
    ("package", "others"), [("engine", {"loadtests", "pipeline"}), ("loadtests", {"engine", "pipeline"})]
)
def test_imports_go_one_way(package: str, others: set[str]) -> None:
    assert {m: _tops(m) & others for m in within(package) if _tops(m) & others} == {}


def test_the_pipeline_knows_only_the_engines_formats() -> None:
    beyond = {m: {x for x in imports(m) if x.partition(".")[0] == "engine"} - FORMATS for m in within("pipeline")}
    assert {m: names for m, names in beyond.items() if names} == {}


def test_the_server_loads_no_torch() -> None:
    """Neither itself nor through what it imports: the engine core is another process."""
    loaded = set().union(*(loaded_by(m) for m in within("engine.server")))
    assert {"engine.text", "engine.protocol"} <= loaded
    assert [m for m in sorted(loaded) if _tops(m) & {"torch", "transformers"}] == []


def test_only_the_locustfile_imports_locust() -> None:
    assert [m for m in MODULES if _tops(m) & {"locust", "gevent"}] == ["loadtests.locustfile"]


def test_the_jail_stands_alone() -> None:
    """It is read by path, in a process that has nothing but Python's own library."""
    assert _tops("pipeline.evaluation.jail") & {"engine", "loadtests", "pipeline"} == set()
