"""The model card of a release: Markdown, generated from its record alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.provenance import FOUR
from pipeline.release.record import RELEASES, Release, TierFigures

USE = RELEASES / "intended-use.md"
NO_USE = f"Not stated: write it into `{USE}`."
FIGURES = [(metric, q) for metric in ("ttft", "itl") for q in ("p50", "p95", "p99")]
ABSENT = "-"


def card(release: Release, use: Path = USE) -> str:
    """``use``: what the model is for, in the words of its owner; a sentence that says so stands where there is none."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pipeline.release", "."), undefined=StrictUndefined, keep_trailing_newline=True,
        finalize=_cell,
    )  # fmt: skip
    words = use.read_text(encoding="utf-8").strip() if use.is_file() else NO_USE
    identities = {part: getattr(release.evaluation, part) for part in FOUR[:3]}
    identities |= {"evalset": release.evaluation.workload, "traffic": release.load.workload}
    return environment.get_template("card.md.j2").render(
        release.model_dump(exclude={"scenarios", "latency", "tiers", "evaluation", "ratings"})
        | {
            "use": Markup(words),
            "model": release.evaluation.model.name,
            "identities": identities,
            "machine": release.load.machine.machine_class,
            "evaluation": f"{release.evaluation.workload.name}, {len(release.scores)} items",
            "scenarios": {k: s | {"accuracy": _share(s.get("accuracy"))} for k, s in release.scenarios.items()},
            "tiers": {k: _tier(f) for k, f in release.tiers.items()},
            "figures": FIGURES,
            "latency": {k: _stage(s) for k, s in release.latency.items()},
            "ratings": release.ratings and _rounded(release.ratings),
        }
    )


def _cell(value: Any) -> Any:
    """What is absent shows as a dash; a bar or a line's end in a text would break a table."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return value.replace("|", "\\|").replace("\n", " ")
    return ABSENT if value is None else value


def _share(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f} %"


def _tier(f: TierFigures) -> dict[str, Any]:
    weights = None if f.weights_bytes is None else f"{f.weights_bytes / 1024**2:.0f} MiB"
    return {"verdict": f.verdict, "accuracy": _share(f.accuracy), "items": f.items, "weights": weights}


def _stage(s: dict[str, Any]) -> dict[str, Any]:
    values = [figure_of(s, metric, q) for metric, q in FIGURES]
    return {"requests": s["requests"], "figures": [None if v is None else f"{v:.0f} ms" for v in values]}


def figure_of(stage: dict[str, Any], metric: str, quantile: str) -> float | None:
    """A latency percentile of load.json in ms; None where it is absent."""
    value = (stage.get(f"{metric}_ms") or {}).get(quantile)
    return None if value is None else float(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return round(value, 2) if isinstance(value, float) else value
