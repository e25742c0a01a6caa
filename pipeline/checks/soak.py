"""Judges a soak by what its load test found over time: did latency drift or step, is all that was taken given back?

    python -m pipeline.checks.soak reports/soak

Exit code 0: sound, or undecided (said loudly: it could not be told); 1: hold, with the reason; 3: something is wrong.
Leaves ``reports/soak-verdict.md`` and ``.json``. A drift or step holds if it is surely larger than
``soak.margin_percent`` of params.yaml and for the worse: over hours even a change that nobody would notice is
significant. Blocks and memory that are never given back hold at any size, for hours are what they need to add up.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.checks.github import tell
from pipeline.errors import SeatrialError
from pipeline.files import atomic_write, write_json
from pipeline.params import load_params
from pipeline.stage import run_main

OUT = Path("reports/soak-verdict.json")
BOOKS = "seatrial_kv_integrity_errors_total"
SIGNS = {"ship": "🟢", "hold": "🔴", "undecided": "🟡"}
LEAKS = {"blocks": "KV blocks", "memory": "memory"}
Outcome = Literal["pass", "fail", "undecided"]
Verdict = Literal["ship", "hold", "undecided"]
Finding = dict[str, Any]  # as pipeline.load.analysis.findings writes it


@dataclass(frozen=True)
class Look:
    """One thing that a soak is for, and what came of it."""

    what: str
    outcome: Outcome
    words: str


def looks_at(load: dict[str, Any], server: dict[str, Any] | None, margin_percent: float) -> list[Look]:
    """Every look at a run's ``load.json`` and ``server.json``."""
    client = load["client"]
    if client["void"]:
        return [Look("the load client", "undecided", f"the run is void: {client['void_reason']}")]
    levels: dict[tuple[str, str], dict[str, Finding]] = {}
    for f in load["findings"]:
        if f["kind"] in ("trend", "step"):
            levels.setdefault((f["stage"], f["metric"]), {})[f["kind"]] = f
    found = [_level(stage, metric, of, margin_percent) for (stage, metric), of in levels.items()]
    found += [_leak(f) for f in load["findings"] if f["kind"] in LEAKS]
    return [*found, _books(server)] if found else [Look("the findings", "undecided", "the run has none")]


def _level(stage: str, metric: str, of: dict[str, Finding], margin: float) -> Look:
    """Whether a quantile stayed where it was, by the two tests of which at most one is believed."""
    what = f"{metric} of {stage}"
    trend, step = of["trend"], of["step"]
    if step["found"]:
        return Look(what, "fail" if _or_endless(step["size"]) > margin else "pass", f"step: {step['words']}")
    if trend["found"]:
        low, high = trend["interval"]
        outcome: Outcome = "undecided" if _or_endless(high) > margin else "pass"
        return Look(what, "fail" if low is not None and low > margin else outcome, f"drift: {trend['words']}")
    if trend["found"] is None:
        return Look(what, "undecided", trend["words"])
    if max(_or_endless(f["detectable"]) for f in (trend, step)) > margin:
        return Look(what, "undecided", f"nothing found, but {margin:g} % might have been missed: {trend['words']}")
    return Look(what, "pass", f"no drift and no step of {margin:g} %")


def _or_endless(size: float | None) -> float:
    """JSON has no infinity: a size that is absent from a finding had no end."""
    return float("inf") if size is None else size


def _leak(f: Finding) -> Look:
    what = LEAKS[f["kind"]] + (f" in {f['stage']}" if f["stage"] else "")
    outcomes: dict[bool | None, Outcome] = {True: "fail", False: "pass", None: "undecided"}
    return Look(what, outcomes[f["found"]], f["words"])


def _books(server: dict[str, Any] | None) -> Look:
    """The engine checks its KV pool whenever nothing runs, and counts what does not balance."""
    before, after = (((server or {}).get(f"metrics_{when}") or {}).get(BOOKS) for when in ("before", "after"))
    if before is None or after is None:
        return Look("the KV pool's books", "undecided", f"server.json holds no {BOOKS} from before and after")
    errors = after - before
    return Look("the KV pool's books", "fail" if errors else "pass", f"{errors:g} idle checks did not balance")


def verdict_of(looks: list[Look]) -> tuple[Verdict, str]:
    """The verdict and its reason: all that fails, else all that could not be told."""
    for outcome, verdict in (("fail", "hold"), ("undecided", "undecided")):
        if named := [f"{x.what}: {x.words}" for x in looks if x.outcome == outcome]:
            more = f" (and {len(named) - 1} more)" if len(named) > 1 else ""
            return verdict, named[0] + more  # type: ignore[return-value]
    return "ship", f"all of {len(looks)} looks found the server as it was"


def markdown(verdict: Verdict, reason: str, looks: list[Look], load: dict[str, Any]) -> str:
    return "\n".join(_lines(verdict, reason, looks, load)) + "\n"


def _lines(verdict: Verdict, reason: str, looks: list[Look], load: dict[str, Any]) -> Iterator[str]:
    yield from (f"## {SIGNS[verdict]} Soak: {verdict.upper()}", "", reason, "")
    yield f"Profile {load['profile']}, {load['duration_s'] / 3600:.1f} hours from {load['started_at']}."
    yield from ("", "| look | outcome | what was found |", "| --- | --- | --- |")
    for x in sorted(looks, key=lambda x: ("fail", "undecided", "pass").index(x.outcome)):
        yield f"| {x.what} | {x.outcome} | {x.words} |"
    others = [f for f in load["findings"] if f["found"] and f["kind"] in ("spikes", "stall", "burst")]
    if others:
        yield from ("", "Also found, and not judged:", "")
        yield from (f"- {f['kind']} in {f['stage']}: {f['words']}" for f in others)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(load.json, server.json or None).

    Raises:
        SeatrialError: there is no load test to judge.
    """
    values: list[dict[str, Any] | None] = []
    for name in ("load.json", "server.json"):
        try:
            values.append(json.loads((folder / name).read_text(encoding="utf-8")))
        except FileNotFoundError:
            values.append(None)
        except ValueError as e:
            raise SeatrialError(f"{folder / name} is not JSON: {e}; run the soak again") from e
    load, server = values
    if not isinstance(load, dict) or not {"client", "findings"} <= load.keys():
        raise SeatrialError(
            f"{folder / 'load.json'} holds no findings; expected what `seatrial loadtest --profile soak --out "
            f"{folder}` writes"
        )
    return load, server


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.checks.soak", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("folder", type=Path, help="of the load test: reports/soak")
    given = parser.parse_args()
    load, server = read(given.folder)
    looks = looks_at(load, server, load_params().soak.margin_percent)
    verdict, reason = verdict_of(looks)
    text = markdown(verdict, reason, looks, load)
    atomic_write(OUT.with_suffix(".md"), text)
    value = {"schema_version": 1, "verdict": verdict, "reason": reason, "looks": [asdict(x) for x in looks]}
    write_json(OUT, value)
    tell(f"Soak {verdict}", verdict, reason, text)
    print(text)
    raise SystemExit(1 if verdict == "hold" else 0)


if __name__ == "__main__":
    run_main(main)
