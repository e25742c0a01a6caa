"""The reference once, on a KV cache of 16 bits, then every variant against it: records in ``reports/fidelity``.

The whole distributions of the reference lie on disk in between: 4 bytes a token and entry of the vocabulary.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.artifact import read_manifest
from engine.config import EngineConfig
from engine.ledger import ModelShape, kv_bytes_per_token
from pipeline.errors import SeatrialError
from pipeline.evaluation import results
from pipeline.fidelity.asking import Asker
from pipeline.fidelity.figures import Scored, compared, greedy_figures, long_figures
from pipeline.fidelity.records import RECORDS
from pipeline.fidelity.texts import Sizes, Workload
from pipeline.files import write_json
from pipeline.provenance import utc_now
from pipeline.stage import Stage
from pipeline.targets.target import LOGS, Target, bundled

ARTIFACTS = Path("artifacts")
NAME = "fidelity"  # of the reference distributions
KV = ("auto", "int8", "int4")
_HEADROOM_GIB = 1.0


@dataclass(frozen=True)
class Variant:
    """A tier on a KV cache: ``auto`` (as the engine is configured), ``int8`` or ``int4``."""

    tier: str
    kv: str = "auto"

    @property
    def name(self) -> str:
        return self.tier if self.kv == "auto" else f"{self.tier}+kv-{self.kv}"


@dataclass(frozen=True)
class Answers:
    held_out: list[Scored]
    prompts: list[Scored]
    long: Scored | None
    greedy: list[list[str]]


def measure(
    reference: str,
    variants: Sequence[Variant],
    config: EngineConfig,
    work: Workload,
    sizes: Sizes,
    folder: Path,
    s: Stage,
) -> list[dict[str, Any]]:
    """Records of ``variants``, each written as soon as it is there. ``folder`` holds the reference distributions and is
    removed at the end.

    Raises:
        ArtifactError, SeatrialError: an artifact that is not what its manifest says, a server that fails.
    """
    vocab = ModelShape.of_directory(ARTIFACTS / reference).vocab
    tokens = sum(map(len, (*work.held_out, *work.prompts, work.long)))
    limit_gib = tokens * vocab * 4 / 2**30 + _HEADROOM_GIB
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = ["--reference-dir", str(folder.absolute()), "--reference-limit-gib", f"{limit_gib:.3f}"]
    longest = max([sizes.output_tokens + max(map(len, work.prompts), default=0), len(work.long), sizes.sequence_tokens])
    config = config.model_copy(update={"max_model_len": max(config.max_model_len, longest)})
    try:
        wide = config.model_copy(update={"kv_dtype": "auto"})
        with _asked(Variant(reference), wide, options, store=True) as (target, asker):
            truth = _answers(asker, work, sizes, f"{reference} (reference)", s)
            of: dict[str, Any] = {
                "variant": reference,
                "model": target.model.model_dump(),
                "quantisation": target.quantisation.model_dump(),
                "engine_derived": target.engine_derived,
            }
        records = []
        for variant in variants:
            own = config if variant.kv == "auto" else config.model_copy(update={"kv_dtype": variant.kv})
            began_at = utc_now()
            with _asked(variant, own, options, store=False) as (target, asker):
                found = _answers(asker, work, sizes, variant.name, s)
            if target.model.digest != of["model"]["digest"]:
                raise SeatrialError(f"{variant.name} was made from {target.model.name}, {reference} from another model")
            record = _record(variant, target, work, found, truth, began_at) | {"reference": of}
            write_json(RECORDS / f"{variant.name}.json", record)
            part = record["parts"]["held_out"]
            s.say(
                f"{variant.name}: KL {part['kl_mean']:.4g} nats a token, top-1 agreement {part['top1_agreement']:.2%}"
            )
            records.append(record)
        return records
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _asked(variant: Variant, config: EngineConfig, options: list[str], store: bool) -> Iterator[tuple[Target, Asker]]:
    name = f"{variant.name}-reference" if store else variant.name
    with bundled(ARTIFACTS / variant.tier, config, LOGS / f"fidelity@{name}.log", options) as target:
        asker = Asker(target, NAME, store)
        try:
            yield target, asker
        finally:
            asker.close()


def _answers(asker: Asker, work: Workload, sizes: Sizes, name: str, s: Stage) -> Answers:
    total = len(work.held_out) + 2 * len(work.prompts) + bool(work.long)
    with s.progress(total, name) as bar:

        def score(ids: list[int]) -> Scored:
            found = asker.score(ids)
            bar.advance()
            return found

        def generate(ids: list[int]) -> list[str]:
            found = asker.generate(ids, sizes.output_tokens)
            bar.advance()
            return found

        return Answers(
            [score(ids) for ids in work.held_out],
            [score(ids) for ids in work.prompts if len(ids) > 1],
            score(work.long) if work.long else None,
            [generate(ids) for ids in work.prompts],
        )


def _record(
    variant: Variant, target: Target, work: Workload, found: Answers, truth: Answers, began_at: str
) -> dict[str, Any]:
    """All of the contract but ``reference``."""
    directory = ARTIFACTS / variant.tier
    kv = str(target.engine_derived["kv_dtype"])
    parts = {"held_out": compared(truth.held_out, found.held_out)}
    if found.prompts:
        parts["prompts"] = compared(truth.prompts, found.prompts)
    return {
        "schema_version": 1,
        "variant": variant.name,
        "tier": variant.tier,
        "kv_dtype": kv,
        "header": results.header(target, work.identity, began_at).model_dump(),
        "weight_bytes": read_manifest(directory).weight_bytes,
        "kv_bytes_per_token": kv_bytes_per_token(ModelShape.of_directory(directory), kv),
        "parts": parts,
        "long": long_figures((found.long and found.long.kl) or []),
        "greedy": greedy_figures([len(p) for p in work.prompts], truth.greedy, found.greedy),
    }
