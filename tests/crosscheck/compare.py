"""Two runs of lm-eval, answer by answer: log-likelihoods, what counts as right, and the error of a lower precision."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_DIFFERENCE = 1e-3  # of the log-likelihood of one continuation, in nats, float32 against float32
MAX_ERROR_RATIO = 1.5  # of our bf16 error to that of transformers in bf16

METRICS = ("acc", "acc_norm", "exact_match")

Key = tuple[str, str, int]  # task, id of the item, which of its continuations


@dataclass(frozen=True)
class Run:
    """What lm-eval logged: log-likelihoods in nats, of each item whether it is right by each metric, greedy texts."""

    name: str
    loglikelihoods: dict[Key, float]
    right: dict[tuple[str, str, str], float]  # by task, metric, id of the item
    texts: dict[tuple[str, str], str] = field(default_factory=dict)  # by task, id of the item

    def __post_init__(self) -> None:
        bad = [key for key, value in self.loglikelihoods.items() if not math.isfinite(value)]
        if bad or not self.loglikelihoods:
            raise ValueError(f"{self.name}: expected finite log-likelihoods, found {bad or 'none at all'}")

    def accuracies(self) -> dict[tuple[str, str], float]:
        """By task and metric."""
        values: dict[tuple[str, str], list[float]] = {}
        for (task, metric, _), value in self.right.items():
            values.setdefault((task, metric), []).append(value)
        return {key: sum(v) / len(v) for key, v in values.items()}


def read_run(name: str, directory: Path) -> Run:
    """The samples that lm-eval wrote below ``directory``.

    Raises:
        ValueError: none, or not in the form that is known here.
    """
    loglikelihoods: dict[Key, float] = {}
    right: dict[tuple[str, str, str], float] = {}
    texts: dict[tuple[str, str], str] = {}
    for path in sorted(directory.rglob("samples_*.jsonl")):
        task = path.name.removeprefix("samples_").rpartition("_")[0]
        for line in path.read_text(encoding="utf-8").splitlines():
            sample = json.loads(line)
            item = sample["doc"]["id"]
            for i, responses in enumerate(sample["resps"]):
                if len(responses) != 1 or (task, item, i) in loglikelihoods:
                    raise ValueError(f"{path}: {item} has several answers to one request, expected one")
                if isinstance(sample["arguments"]["gen_args_0"].get("arg_1"), dict):  # settings of a generation
                    texts[task, item] = responses[0]
                    continue
                loglikelihoods[task, item, i], greedy = _parse(responses[0])
                if greedy is not None:
                    right[task, "greedy", f"{item}/{i}"] = greedy
            right |= {(task, m, item): float(sample[m]) for m in METRICS if m in sample}
    return Run(name, loglikelihoods, right, texts)


def _parse(response: Any) -> tuple[float, float | None]:
    """Of a continuation [log-likelihood, whether it is the greedy one]; of a whole text the log-likelihood alone."""
    if not isinstance(response, list):
        return float(response), None
    return float(response[0]), {"False": 0.0, "True": 1.0}[response[1]]


@dataclass(frozen=True)
class Row:
    """One line of the report. ``passed`` is None where nothing is required."""

    what: str
    value: str
    bound: str = ""
    passed: bool | None = None


def same(found: Run, expected: Run, bound: float = MAX_DIFFERENCE) -> list[Row]:
    """Rows on whether two runs are the same: log-likelihoods within ``bound``, every item judged alike."""
    _same_items(found, expected)
    worst = max(expected.loglikelihoods, key=lambda key: _difference(found, expected, key))
    difference = _difference(found, expected, worst)
    where = f" ({worst[0]} {worst[1]}, continuation {worst[2]})" if difference else ""
    pair = f"{found.name} against {expected.name}"
    flips = [key for key in expected.right if found.right[key] != expected.right[key]]
    rows = [
        Row(f"{pair}: largest difference of {len(expected.loglikelihoods)} log-likelihoods", f"{difference:.2e}{where}",
            f"<= {bound:.0e}" if bound else "0", difference <= bound),
        Row(f"{pair}: items judged otherwise", ", ".join(map(" ".join, flips)) or "0", "0", not flips),
    ]  # fmt: skip
    if expected.texts:
        other = [key for key in expected.texts if found.texts[key] != expected.texts[key]]
        words = f"{pair}: greedy texts of {len(expected.texts)} that differ"
        rows.append(Row(words, ", ".join(map(" ".join, other)) or "0", "0", not other))
    before = expected.accuracies()
    for (task, metric), value in found.accuracies().items():
        expected_value = before[task, metric]
        words = f"{pair}: {metric} of {task}"
        rows.append(Row(words, f"{value:.4f}", f"{expected_value:.4f}", value == expected_value))
    return rows


def lower_precision(ours: Run, theirs: Run, truth: Run, bound: float = MAX_ERROR_RATIO) -> list[Row]:
    """Rows on whether our error in a lower precision is at most ``bound`` times theirs, against the same truth."""
    rows: list[Row] = []
    errors = {}
    for run in (ours, theirs):
        _same_items(run, truth)
        found = [_difference(run, truth, key) for key in truth.loglikelihoods]
        rms, mean = math.sqrt(sum(e * e for e in found) / len(found)), sum(found) / len(found)
        errors[run.name] = {"root mean square": rms, "mean": mean}
        flips = sum(run.right[key] != truth.right[key] for key in truth.right)
        rows.append(
            Row(
                f"{run.name} against {truth.name}: error of the log-likelihoods",
                f"rms {rms:.4f}, mean {mean:.4f}, largest {max(found):.4f}; {flips} items judged otherwise",
            )
        )
    for kind, value in errors[ours.name].items():
        other = errors[theirs.name][kind]
        if other == 0:
            raise ValueError(f"{theirs.name} is exactly {truth.name}; it was not run in a lower precision")
        words = f"{kind} error of {ours.name} to that of {theirs.name}"
        rows.append(Row(words, f"{value / other:.3f}", f"<= {bound}", value <= bound * other))
    return rows


def _difference(a: Run, b: Run, key: Key) -> float:
    return abs(a.loglikelihoods[key] - b.loglikelihoods[key])


def _same_items(found: Run, expected: Run) -> None:
    """
    Raises:
        ValueError: one run has answers that the other has not.
    """
    for a, b in zip(_kinds(found), _kinds(expected), strict=True):
        if odd := sorted(map(str, a.keys() ^ b.keys())):
            raise ValueError(f"{found.name} and {expected.name} differ in {len(odd)} items, first {odd[0]}")


def _kinds(run: Run) -> list[dict[Any, Any]]:
    return [run.loglikelihoods, run.right, run.texts]
