"""Who takes part, from the options of the command line."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.artifact import read_manifest
from engine.bench.engines.engine import Engine
from engine.bench.engines.piped import PipedEngine
from engine.bench.engines.served import PORT, ServedEngine
from engine.bench.errors import BenchError
from engine.config import EngineConfig
from engine.ledger import compute_threads

DRIVERS = "engine.bench.engines.drivers"
DTYPES = ("float32", "bfloat16")
QUEUE = 1024  # requests that may wait in ours: every workload is handed over at once
OURS = "ours, in process"
EVERY = ""  # --set without a name


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engines", "in any number and combination; at least one")
    group.add_argument(
        "--artifact", action="append", default=[], metavar="[NAME=]DIR", help="ours, in a process of its own, no HTTP"
    )
    group.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="where ours and transformers run (default: as the engine settings say)",
    )
    group.add_argument("--http", action="store_true", help="each --artifact also as `seatrial serve` has it, over HTTP")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="[NAME:]KEY=VALUE",
        help="an engine setting of ours, of all or of the artifact called NAME; prefix_caching is always off",
    )
    group.add_argument(
        "--transformers",
        action="append",
        nargs="+",
        default=[],
        metavar=("DIR", "DTYPE"),
        help=f"transformers' generate; DTYPE is {' or '.join(DTYPES)} (default {DTYPES[0]})",
    )
    group.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="NAME=URL|COMMAND",
        help=f"an OpenAI-compatible server, running or started by a command with {PORT} where its port goes",
    )
    group.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a driver that speaks lines of JSON; see engine/bench/engines/protocol.py",
    )
    group.add_argument("--config-json", default="{}", help="an EngineConfig as JSON, for ours")


def contenders(arguments: argparse.Namespace) -> list[Engine]:
    """
    Raises:
        BenchError: an option that is not as it should be, or no engine at all.
        ArtifactError: not an artifact.
    """
    ours = [_named(a, default=True) for a in arguments.artifact]
    named = [(name or read_manifest(Path(directory)).name, Path(directory)) for name, directory in ours]
    settings = _settings(arguments.set, [name for name, _ in named])
    if arguments.device is not None:
        settings[EVERY].setdefault("backend", arguments.device)
    engines: list[Engine] = []
    for name, directory in named:
        config = _config(arguments.config_json, settings[EVERY] | settings.get(name, {}))
        engines += _ours(name, directory, config, arguments.http)
    for given in arguments.transformers:
        engines.append(_transformers(given, _config(arguments.config_json, settings[EVERY])))
    for text in arguments.against:
        name, target = _named(text)
        engines.append(_against(name, target))
    for text in arguments.peer:
        name, target = _named(text)
        engines.append(PipedEngine(name, "peer, driver", _split(name, target)))
    names = [e.name for e in engines]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise BenchError(f"two engines are called {twice[0]!r}; give names: NAME=...")
    if not engines:
        raise BenchError("no engine is given: --artifact, --transformers, --against or --peer (see --help)")
    return engines


def _named(text: str, default: bool = False) -> tuple[str, str]:
    """NAME=REST; with ``default`` the name may be absent and is then empty."""
    name, separator, rest = text.partition("=")
    if default and not separator:
        return "", text
    if not name.strip() or not rest.strip():
        raise BenchError(f"{text!r}, expected NAME=... with something on both sides")
    return name.strip(), rest.strip()


def _settings(texts: list[str], names: list[str]) -> dict[str, dict[str, Any]]:
    """By artifact; EVERY: for all."""
    found: dict[str, dict[str, Any]] = {EVERY: {}}
    for text in texts:
        key, separator, value = text.partition("=")
        name, colon, key = key.rpartition(":")
        if not separator or not key:
            raise BenchError(f"--set {text!r}, expected KEY=VALUE or NAME:KEY=VALUE")
        if colon and name not in names:
            raise BenchError(f"--set {text!r}: no artifact is called {name!r}; give --artifact {name}=DIR")
        if key == "prefix_caching":
            raise BenchError("--set prefix_caching: it is off; every round has the same prompts, which would be found")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        found.setdefault(name, {})[key] = parsed
    return found


def _config(text: str, settings: dict[str, Any]) -> EngineConfig:
    try:
        given = json.loads(text)
        if isinstance(given, dict) and given.get("prefix_caching"):
            raise BenchError(
                "--config-json: prefix_caching is off; every round has the same prompts, which would be found"
            )
        merged = {"max_queue": QUEUE, **given, "prefix_caching": False, **settings}
        merged["max_queue"] = max(QUEUE, merged["max_queue"])
        return EngineConfig.model_validate(merged)
    except ValidationError as e:
        problems = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors())
        raise BenchError(f"the engine config is not valid: {problems}") from e
    except (ValueError, TypeError) as e:
        raise BenchError(f"--config-json is not a valid engine config: {e}") from e


def _ours(name: str, directory: Path, config: EngineConfig, http: bool) -> list[Engine]:
    given = ["--artifact", str(directory), "--config-json", config.model_dump_json()]
    engines: list[Engine] = [
        PipedEngine(name, OURS, [sys.executable, "-m", f"{DRIVERS}.ours", *given]),
    ]
    if http:
        server = [sys.executable, "-m", "engine.server", *given, "--port", PORT, "--exit-with-stdin"]
        engines.append(ServedEngine(f"{name} http", "ours, over HTTP", server))
    return engines


def _transformers(given: list[str], config: EngineConfig) -> Engine:
    directory, dtype, *rest = [*given, DTYPES[0]] if len(given) == 1 else given
    if dtype not in DTYPES or rest:
        raise BenchError(f"--transformers {' '.join(given)}, expected DIR and {' or '.join(DTYPES)}")
    if not (Path(directory) / "config.json").is_file():
        raise BenchError(f"--transformers {directory} has no config.json; expected a Hugging Face model directory")
    command = [sys.executable, "-m", f"{DRIVERS}.generate", "--model", directory, "--dtype", dtype]
    return PipedEngine(
        f"transformers {dtype}",
        "transformers generate, static batch",
        [*command, "--threads", str(compute_threads(config)), "--device", config.backend],
    )


def _against(name: str, target: str) -> Engine:
    if target.startswith(("http://", "https://")):
        return ServedEngine(name, "server, over HTTP", target)
    command = _split(name, target)
    if not any(PORT in part for part in command):
        raise BenchError(f"--against {name}: the command has no {PORT}; write it where the server's port goes")
    return ServedEngine(name, "server, over HTTP", command)


def _split(name: str, command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as e:
        raise BenchError(f"the command of {name} cannot be read: {e}") from e


def device_of(arguments: argparse.Namespace) -> str:
    """What ours and transformers compute on."""
    of_all = [text for text in arguments.set if ":" not in text.partition("=")[0]]
    asked = {} if arguments.device is None else {"backend": arguments.device}
    return _config(arguments.config_json, asked | _settings(of_all, [])[EVERY]).backend


def reference_of(engines: list[Engine]) -> str | None:
    """Whose greedy tokens the others' are held against: transformers in float32, if it takes part."""
    return next((e.name for e in engines if e.name == f"transformers {DTYPES[0]}"), None)


def base_of(engines: list[Engine], wanted: str | None) -> str:
    """What ratios are to: as wanted, or else the first engine that is not ours.

    Raises:
        BenchError: no engine has that name.
    """
    names = [e.name for e in engines]
    if wanted is not None and wanted not in names:
        raise BenchError(f"--base {wanted!r}: no such engine; there are: {', '.join(names)}")
    return wanted or next((e.name for e in engines if not e.kind.startswith("ours")), names[0])


def vocab_of(arguments: argparse.Namespace) -> int:
    """Of which token ids are drawn: the smallest vocabulary of the models given as directories.

    Raises:
        BenchError: there is none, and no --vocab.
    """
    if arguments.vocab is not None:
        return int(arguments.vocab)
    directories = [_named(a, default=True)[1] for a in arguments.artifact] + [t[0] for t in arguments.transformers]
    found = [_vocab(Path(d)) for d in directories]
    if not found:
        raise BenchError("without a model directory the vocabulary is not known: give --vocab N")
    return min(found)


def _vocab(directory: Path) -> int:
    path = directory / "config.json"
    try:
        return int(json.loads(path.read_bytes())["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise BenchError(f"{path} does not say the vocab_size: {e}") from e
