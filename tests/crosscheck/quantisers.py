"""How much our recipes lose beside llmcompressor's, on the same calibration text, at the same bits and groups.

    python -m tests.crosscheck.quantisers --model artifacts/base [--venv DIR] [--keep DIR]

llmcompressor quantises the model in an environment of its own, as its examples do, on the very token sequences that
our recipes calibrate on; ours are the tiers of ``params.yaml``, from the folder of the model (``--ours``), made there
if they are missing. Both are measured by one instrument (``divergences.py``) against the unquantised model in float32:
on the held-out text of ``pipeline.fidelity``, which is refused if any calibration text overlaps it, and on prompts of
the evalset. That the instrument reads what llmcompressor meant is checked by log-probabilities that it gives itself.

Printed are perplexity, mean and P99 divergence and top-1 agreement of each, then the ratio of mean divergences of ours
to theirs (below 1: ours loses less), and of our own searches to plain rounding, with intervals over the sequences. It
ends with 0, with 1 if a ratio is surely above its limit (1.05 to theirs, 1 to rounding), with 3 if there is nothing to
compare.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from engine.artifact import ArtifactError, read_manifest
from pipeline.errors import SeatrialError
from pipeline.evaluation.items import EVALSETS, load_evalset
from pipeline.fidelity.figures import Scored, compared
from pipeline.fidelity.texts import Ids, Sizes, workload
from pipeline.files import write_json
from pipeline.params import Params, load_params
from pipeline.quantize.calibrate import calibration_sequences
from pipeline.quantize.registry import parse_entry
from pipeline.stage import stage
from tests.crosscheck.divergences import (
    SPAN_OF_COMPRESSED_TENSORS,
    Ratio,
    decoded,
    distributions,
    loaded,
    mean_ratio,
    scored,
)
from tests.crosscheck.environment import Environment

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENT = "llmcompressor==0.14.0.1"
METHODS = {  # of llmcompressor, by the tier of ours that they stand beside
    "int8": ("smoothed-rounded", "smoothed-gptq"),
    "int4-g64": ("rounded",),
    "awq-int4-g64": ("awq",),
    "gptq-int4-g64": ("gptq",),
}
ROUNDED, SEARCHED = "int4-g64", ("awq-int4-g64", "gptq-int4-g64")
CALIBRATION_OF_ROUNDED = "awq-int4-g64"  # it reads none, but asks for some
LIMIT = 1.05
PROBE_NATS = 0.02  # of a token, float32 on both sides; an input that is rounded to the other side counts in it
PARTS = ("held_out", "prompts")
Answers = dict[str, list[Scored]]  # by part


@dataclass(frozen=True)
class Compared:
    """A ratio of mean divergences and the limit that it is held to."""

    ours: str
    other: str
    limit: float
    ratios: dict[str, Ratio]  # by part, and of both together

    @property
    def verdict(self) -> str:
        both = self.ratios["both"]
        if both.high <= self.limit:
            return "holds"
        return "broken" if both.low > self.limit else "open"


def own_tiers(model: Path, folder: Path, params: Params) -> dict[str, Path]:
    """Our artifacts, made where they are missing.

    Raises:
        SeatrialError: one that is there was made of another model or by other settings.
    """
    found = {}
    for tier in METHODS:
        directory = folder / tier
        if not directory.is_dir():
            from pipeline.quantize.run import quantise

            with stage("crosscheck", tier, note=False) as s:
                quantise(tier, params.recipe_of(tier), model, directory, ROOT / ".seatrial" / "work", s)
        manifest, wanted = read_manifest(directory), parse_entry(tier, params.recipe_of(tier))[1].model_dump()
        if manifest.parameters != wanted or manifest.source != read_manifest(model).source:
            raise SeatrialError(f"{directory} is of another model or other settings than params.yaml; build it again")
        found[tier] = directory
    return found


def their_tiers(model: Path, params: Params, environment: Environment, console: Console) -> dict[str, Path]:
    """llmcompressor's directories by the name of the method; one that is there from an earlier call is taken.

    Raises:
        SeatrialError: it failed or took longer than the limit.
    """
    found = {}
    for tier, methods in METHODS.items():
        entry = params.recipe_of(CALIBRATION_OF_ROUNDED if tier == ROUNDED else tier)
        sequences = environment.out / f"{tier}-sequences.json"
        write_json(sequences, [ids.tolist() for ids in calibration(model, entry)])
        for method in methods:
            out = environment.out / method
            if not (out / "probe.json").is_file():
                script = str(Path(__file__).with_name("quantise_llmcompressor.py"))
                command = [str(environment.python), "-P", script, str(model), str(sequences), method, str(out)]
                environment.run(command, f"llmcompressor-{method}", environment.out)
            console.print(f"llmcompressor, {method}: {_probe(out)['seconds']:.0f} s")
            found[method] = out
    return found


def calibration(model: Path, entry: dict[str, Any]) -> list[torch.Tensor]:
    """The sequences that our recipe of this entry reads."""
    longest = int(json.loads((model / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"])
    return calibration_sequences(entry["calibration"], model, entry["calibration_tokens"], longest)


def _probe(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "probe.json").read_text(encoding="utf-8"))
    return found


def check_probe(name: str, ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The mean difference in nats of a token between what the instrument and what the maker computes.

    Raises:
        SeatrialError: it is larger than rounding explains.
    """
    difference = sum(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / len(ours)
    if not difference <= PROBE_NATS:
        raise SeatrialError(
            f"{name}: the log-probabilities of the weights as read here differ by {difference:.4f} nats a token from "
            f"those that llmcompressor computes (limit {PROBE_NATS}); the form of its directory has changed"
        )
    return difference


def texts(
    model: Path, params: Params, held_out_tokens: int, sequence_tokens: int, per_scenario: int
) -> dict[str, list[Ids]]:
    """
    Raises:
        SeatrialError: the held-out text overlaps calibration text or the evalset, or is too short.
    """
    evalset = load_evalset(ROOT / EVALSETS / params.evaluation.evalset)
    sizes = Sizes(held_out_tokens, sequence_tokens, per_scenario, long_tokens=0)
    work = workload(model, "v1", evalset.items, sizes, evalset.identity)
    return {"held_out": work.held_out, "prompts": [ids for ids in work.prompts if len(ids) > 1]}


def answers(model: Any, asked: dict[str, list[Ids]], reference: dict[str, list[torch.Tensor]] | None) -> Answers:
    return {
        part: [
            scored(distributions(model, ids), ids, None if reference is None else reference[part][i])
            for i, ids in enumerate(sequences)
        ]
        for part, sequences in asked.items()
    }


def divergences(found: Answers, part: str) -> list[list[float]]:
    """By sequence; of ``both`` parts those of the one, then those of the other."""
    return [s.kl or [] for p in (PARTS if part == "both" else (part,)) for s in found[p]]


def comparisons(ours: dict[str, Answers], theirs: dict[str, Answers]) -> list[Compared]:
    """Ours to theirs by tier, then our searches to our rounding."""

    def one(name: str, other: str, a: Answers, b: Answers, limit: float) -> Compared:
        parts = (*PARTS, "both")
        return Compared(name, other, limit, {p: mean_ratio(divergences(a, p), divergences(b, p)) for p in parts})

    pairs = [(tier, method) for tier, methods in METHODS.items() for method in methods]
    found = [one(tier, f"llmcompressor {m}", ours[tier], theirs[m], LIMIT) for tier, m in pairs]
    return found + [one(tier, ROUNDED, ours[tier], ours[ROUNDED], 1.0) for tier in SEARCHED]


def figures_table(rows: list[tuple[str, float, dict[str, dict[str, Any]]]]) -> Table:
    """A line for each model: bits of a weight, and of each part perplexity, mean and P99 divergence, agreement."""
    table = Table("model", "bits", *(f"{part} {x}" for part in PARTS for x in ("ppl", "KL", "P99", "top-1")))
    for name, bits, parts in rows:
        cells = [
            f"{parts[p][key]:{form}}"
            for p in PARTS
            for key, form in (("perplexity", ".3f"), ("kl_mean", ".5f"), ("kl_p99", ".3f"), ("top1_agreement", ".2%"))
        ]
        table.add_row(name, f"{bits:.2f}", *cells)
    return table


def ratios_table(found: Sequence[Compared]) -> Table:
    table = Table("mean KL of", "to that of", "held-out text", "prompts", "both (95 %)", "limit", "verdict")
    for c in found:
        table.add_row(c.ours, c.other, *(str(c.ratios[p]) for p in (*PARTS, "both")), f"{c.limit:g}", c.verdict)
    return table


def measure(
    model: Path, ours: dict[str, Path], theirs: dict[str, Path], asked: dict[str, list[Ids]], console: Console
) -> tuple[Table, list[Compared]]:
    """The figures of all models, and their comparisons. The reference distributions lie in memory: 4 bytes a token and
    entry of the vocabulary.

    Raises:
        SeatrialError: a directory that cannot be read, or is read otherwise than it was meant.
    """
    base = loaded(model, decoded(model))
    truth = {part: [distributions(base, ids) for ids in sequences] for part, sequences in asked.items()}
    reference = {p: [scored(d, i, d) for d, i in zip(truth[p], asked[p], strict=True)] for p in asked}
    rows, found = [], {}
    for name, directory in {**ours, **theirs}.items():
        weights = decoded(directory)
        quantised = loaded(model, weights)
        if name in theirs:
            ids = json.loads((directory.parent / f"{_tier_of(name)}-sequences.json").read_text(encoding="utf-8"))[0]
            as_it_computes = loaded(model, weights, SPAN_OF_COMPRESSED_TENSORS)
            probed = scored(distributions(as_it_computes, ids), ids).logprobs
            difference = check_probe(name, probed, _probe(directory)["logprobs"])
            console.print(f"{name}: {difference:.2g} nats a token from llmcompressor's own log-probabilities")
        found[name] = answers(quantised, asked, truth)
        side = "llmcompressor" if name in theirs else "ours"
        rows.append((f"{side} {name}", weights.bits, {p: compared(reference[p], found[name][p]) for p in PARTS}))
    unquantised = {p: compared(reference[p], reference[p]) for p in PARTS}
    table = figures_table([("unquantised", 16.0, unquantised), *rows])
    return table, comparisons({n: found[n] for n in ours}, {n: found[n] for n in theirs})


def _tier_of(method: str) -> str:
    return next(tier for tier, methods in METHODS.items() if method in methods)


def default_venv() -> Path:
    """Where llmcompressor's environment is, unless another place is asked for."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seatrial" / "llmcompressor"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crosscheck.quantisers", description="what our recipes lose beside llmcompressor's"
    )
    parser.add_argument("--model", type=Path, required=True, help="the unquantised artifact")
    parser.add_argument("--ours", type=Path, help="folder of our tiers, made there if missing (the model's)")
    parser.add_argument("--held-out-tokens", type=int, default=2048, help="of held-out text (%(default)s)")
    parser.add_argument("--sequence-tokens", type=int, default=256, help="of each stretch of it (%(default)s)")
    parser.add_argument("--prompts-per-scenario", type=int, default=4, help="of the evalset (%(default)s)")
    parser.add_argument(
        "--venv", type=Path, default=default_venv(), help="llmcompressor's, made if needed (%(default)s)"
    )
    parser.add_argument(
        "--keep", type=Path, help="where logs, directories and figures are kept; without it they are not"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="(%(default)s)")
    parser.add_argument("--limit-s", type=float, default=3600, help="for each method of llmcompressor (%(default)s)")
    asked = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    torch.set_num_threads(asked.threads)
    with ExitStack() as stack:
        out = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crosscheck-")))
        out.mkdir(parents=True, exist_ok=True)
        environment = Environment(asked.venv.resolve(), REQUIREMENT, out.resolve(), asked.threads, asked.limit_s)
        model, params = asked.model.resolve(), load_params()
        try:
            words = texts(model, params, asked.held_out_tokens, asked.sequence_tokens, asked.prompts_per_scenario)
            environment.make()
            ours = own_tiers(model, asked.ours or model.parent, params)
            theirs = their_tiers(model, params, environment, console)
            table, found = measure(model, ours, theirs, words, console)
        except (SeatrialError, ArtifactError) as e:
            print(e, file=sys.stderr)
            return 3
        tokens = {part: sum(len(ids) - 1 for ids in words[part]) for part in PARTS}
        console.print(", ".join(f"{part}: {len(words[part])} sequences, {tokens[part]} tokens" for part in PARTS))
        console.print(table)
        console.print(ratios_table(found))
    return 1 if any(c.verdict == "broken" for c in found) else 0


if __name__ == "__main__":
    sys.exit(main())
