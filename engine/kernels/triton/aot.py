"""Compiles every kernel for GPUs that are not there: ``python -m engine.kernels.triton.aot``.

What is compiled is what TritonKernels launches for the layers of an 8B model (and, with norms of queries and keys, its
neighbours), found by letting it run on tensors without memory. A table says what each kernel takes of a multiprocessor,
and which matrix instruction it uses: the tiles of a product for few and for many rows must use one kind, so that a
row's bits are the same in both.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from engine.kernels.draws import COLUMNS
from engine.kernels.interface import AttentionMeta, Heads, PackedLinear, StepInput
from engine.kernels.triton.backend import TritonKernels
from engine.kernels.triton.jit.language import BY_STEP
from engine.kernels.triton.launch import INTERPRETED, options
from engine.kernels.triton.weights import TritonLinear, half_of

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
SHARED_LIMITS = {"sm_80": 166_912, "sm_90": 232_448, "gfx942": 65_536}  # bytes a program may have
POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float64: "*fp64",
}
HIDDEN, INTERMEDIATE, VOCAB, BLOCK_SIZE = 4096, 14336, 128_256, 16
HEADS = Heads(32, 8, 128)
SCHEMES = ("bf16", "w8a8", "w4a16", "w4a8", "fp8")
NATIVE_FP8 = {"sm_90"}  # targets whose instructions multiply e4m3 codes: launch.has_fp8
GROUP = 128
ROWS = (1, 48, 2048)  # a row for each class of tiles


@dataclass(frozen=True)
class Launch:
    """One launch, as much of it as the compiler sees."""

    name: str
    kernel: Any = field(repr=False)
    signature: dict[str, str]
    constants: dict[str, Any]
    aligned: tuple[int, ...]  # arguments that 16 divides
    warps: int
    stages: int

    def is_for(self, target: str) -> bool:
        """Whether it is launched there."""
        native = self.constants.get("NATIVE")
        return native is None or native == (target in NATIVE_FP8)

    @property
    def key(self) -> str:
        return repr((self.name, self.signature, sorted(self.constants.items(), key=str), self.aligned, self.warps))


@dataclass(frozen=True)
class Compiled:
    """Figures of one kernel on one target; None where the tools cannot tell."""

    kernel: str
    target: str
    constants: dict[str, Any]
    warps: int
    stages: int
    registers: int | None
    spilled_bytes: int | None
    shared_bytes: int
    instructions: list[str]  # on matrices, without their number of columns

    @property
    def fits(self) -> bool:
        return self.shared_bytes <= SHARED_LIMITS[self.target]


class Recorder:
    """Stands in for ``launch.run``; keeps each different launch once."""

    def __init__(self) -> None:
        self.found: dict[str, Launch] = {}

    def __call__(
        self, kernel: Any, grid: Sequence[int], *arguments: Any, warps: int = 4, stages: int = 2, **constants: Any
    ) -> None:
        names = kernel.arg_names
        signature, own, aligned = {}, dict(constants), []
        for i, (name, value) in enumerate(zip(names, arguments, strict=False)):
            match value:
                case Tensor():
                    signature[name] = POINTERS[value.dtype]
                    aligned.append(i)
                case float():
                    signature[name] = "fp32"
                case int() if value != 1 or name in BY_STEP:
                    signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
                    if value % 16 == 0 and name not in BY_STEP:
                        aligned.append(i)
                case _:  # None, and 1, which Triton compiles in
                    own[name] = value
        signature |= {name: "constexpr" for name in own}
        launch = Launch(kernel.__name__, kernel, {n: signature[n] for n in names}, own, tuple(aligned), warps, stages)
        self.found.setdefault(launch.key, launch)


def launches(dtype: torch.dtype = torch.bfloat16, rows: Sequence[int] = ROWS) -> list[Launch]:
    """What the operations of an 8B model's layers launch, for steps of so many rows."""
    recorder = Recorder()
    device = torch.device("meta")
    kernels, native = (TritonKernels(dtype, device=device, launch=recorder, native_fp8=n) for n in (False, True))
    with device:
        for count in rows:
            _products(kernels, count, SCHEMES)
            _products(native, count, ("fp8",))
            _attention(kernels, count)
        _rows(kernels)
    return list(recorder.found.values())


def _products(kernels: TritonKernels, count: int, schemes: Sequence[str]) -> None:
    for scheme in schemes:
        x = torch.empty(count, HIDDEN, dtype=kernels.dtype)
        kernels.gated_linear(x, _weight(kernels, scheme, 2 * INTERMEDIATE, HIDDEN), "silu")
        kernels.linear(
            torch.empty(count, INTERMEDIATE, dtype=kernels.dtype), _weight(kernels, scheme, HIDDEN, INTERMEDIATE)
        )
    kernels.logits(torch.empty(count, HIDDEN, dtype=kernels.dtype), _weight(kernels, "bf16", VOCAB, HIDDEN))


def _weight(kernels: TritonKernels, scheme: str, n: int, k: int) -> PackedLinear:
    if scheme == "bf16":
        return TritonLinear(scheme, k, n, {"weight": torch.empty(n, k, dtype=kernels.dtype)})
    if scheme in {"w8a8", "fp8"}:
        codes = torch.empty(n, k, dtype=torch.int8 if scheme == "w8a8" else torch.uint8)
        return TritonLinear(scheme, k, n, {"weight": codes, "scale": torch.empty(n)})
    own = {
        "codes": torch.empty(n, k // 2, dtype=torch.uint8),
        "scale": torch.empty(n, k // GROUP, dtype=torch.bfloat16),
        "zero": torch.empty(n, k // GROUP, dtype=torch.uint8),
    }
    return TritonLinear(scheme, k, n, own, group=GROUP, half=half_of(k, GROUP, both=scheme == "w4a8"))


def _attention(kernels: TritonKernels, count: int) -> None:
    requests = 1 if count > 64 else count
    norm = torch.empty(HEADS.dim)
    normed = Heads(HEADS.heads, HEADS.kv_heads, HEADS.dim, norm, norm, 1e-6)
    step = StepInput(
        tokens=torch.empty(count, dtype=torch.int64),
        positions=torch.empty(count, dtype=torch.int64),
        slots=torch.empty(count, dtype=torch.int64),
        meta=AttentionMeta(
            torch.empty(requests + 1, dtype=torch.int32),
            torch.empty(requests, dtype=torch.int32),
            torch.empty(requests, 8192 // BLOCK_SIZE, dtype=torch.int32),
        ),
        wanted=torch.empty(count, dtype=torch.int64),
    )
    turns = torch.empty(8192, HEADS.dim // 2)
    qkv = torch.empty(count, (HEADS.heads + 2 * HEADS.kv_heads) * HEADS.dim, dtype=kernels.dtype)
    for kv_dtype in (kernels.dtype, torch.int8, torch.float8_e4m3fn, torch.uint4):
        cache = kernels.new_kv_cache(1024, BLOCK_SIZE, HEADS.kv_heads, HEADS.dim, kv_dtype)
        for about in (HEADS, normed):
            q = kernels.queries(qkv, about, turns, turns, step, cache)
        kernels.attend(q, HEADS, cache, step, HEADS.dim**-0.5, None)
        kv = torch.empty(count, HEADS.kv_heads, HEADS.dim, dtype=kernels.dtype)
        kernels.write_kv(kv, kv, cache, step.slots)


def _rows(kernels: TritonKernels) -> None:
    x = torch.empty(48, HIDDEN, dtype=kernels.dtype)
    kernels.rms_norm(x, torch.empty(HIDDEN), 1e-5)
    kernels.add_rms_norm(x, x, torch.empty(HIDDEN), 1e-5)
    for activation in ("silu", "gelu_tanh"):
        kernels.gated_mul(torch.empty(48, 2 * INTERMEDIATE, dtype=kernels.dtype), activation)
    kernels.best(torch.empty(48, VOCAB))
    kernels.follow(torch.empty(48, dtype=torch.int64), torch.empty(48, 3, dtype=torch.int32))
    kernels.draw(torch.empty(48, VOCAB), torch.empty(48), torch.empty(48, COLUMNS, dtype=torch.int64))
    q, turns = torch.empty(48, HEADS.heads, HEADS.dim, dtype=kernels.dtype), torch.empty(48, HEADS.dim)
    kernels.rope(q, q, turns, turns)


def compile_for(launch: Launch, target: str) -> Compiled:
    """Compiles it, from the cache where that has it.

    Raises:
        Exception: whatever the compiler says.
    """
    backend, arch, warp = TARGETS[target]
    source = ASTSource(
        launch.kernel,
        launch.signature,
        constexprs=launch.constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in launch.aligned},
    )
    how = options(backend, launch.warps, launch.stages)
    made: CompiledKernel = triton.compile(source, target=GPUTarget(backend, arch, warp), options=how)
    registers, spilled = _resources(made.asm)
    return Compiled(
        launch.name,
        target,
        {name: value for name, value in launch.constants.items() if value is not None and name.isupper()},
        launch.warps,
        how["num_stages"],
        registers,
        spilled,
        int(made.metadata.shared),
        _matrix_instructions(made.asm),
    )


def _matrix_instructions(asm: dict[str, Any]) -> list[str]:
    """The kinds of matrix instruction, with their step along the sum and their types; without the number of columns,
    over which nothing is added up."""
    if "amdgcn" in asm:
        return sorted(set(re.findall(r"v_mfma_\w+", asm["amdgcn"])))
    found = re.findall(r"(wgmma\.mma_async|mma)\.sync\.aligned\.([\w.]+)", asm["ptx"])
    return sorted({re.sub(r"^(m\d+)n\d+", r"\1", rest) + f" {name}" for name, rest in found})


def _resources(asm: dict[str, Any]) -> tuple[int | None, int | None]:
    """(registers a thread, spilled bytes a thread)."""
    if "amdgcn" in asm:
        text = asm["amdgcn"]
        vector, spilled = (re.search(rf"\.{name}:\s*(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count"))
        return (int(vector[1]) if vector else None), (4 * int(spilled[1]) if spilled else None)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.is_file():
        return None, None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True).stdout
    return (
        int(found[1]) if (found := re.search(r"REG:(\d+)", said)) else None,
        int(found[1]) if (found := re.search(r"STACK:(\d+)", said)) else None,
    )


def compiled(found: Sequence[Launch], targets: Sequence[str]) -> Iterator[Compiled]:
    for launch in found:
        for target in targets:
            if launch.is_for(target):
                yield compile_for(launch, target)


def first_of_each(found: Sequence[Launch]) -> list[Launch]:
    """Each kernel once for each class of tiles and kind of cache, as it is launched first."""
    first: dict[tuple[Any, ...], Launch] = {}
    for launch in found:
        kind = (launch.constants.get("ROWS"), launch.constants.get("NATIVE"))
        written = (launch.signature.get("k_cache"), launch.signature.get("k_scales"), launch.signature.get("q"))
        first.setdefault((launch.name, *kind, *written), launch)
    return list(first.values())


HEADER = f"{'kernel':<16} {'target':<7} {'warps':>5} {'stages':>6} {'regs':>5} {'spilled':>7} {'shared':>7}  "


def _constant(name: str, value: object) -> str:
    return f"{name} {value}" if not isinstance(value, bool) else name if value else f"not {name}"


def row(made: Compiled) -> str:
    """A line of the table."""
    what = ", ".join(_constant(name.lower(), value) for name, value in sorted(made.constants.items()))
    registers, spilled = ("?" if n is None else n for n in (made.registers, made.spilled_bytes))
    return (
        f"{made.kernel:<16} {made.target:<7} {made.warps:>5} {made.stages:>6} {registers:>5} {spilled:>7} "
        f"{made.shared_bytes:>7}  {'; '.join(made.instructions) or '-'}  [{what}]"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.kernels.triton.aot", description=__doc__)
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="all of them if not given")
    parser.add_argument("--once", action="store_true", help="each kernel in one form a class of tiles, not in all")
    parser.add_argument("--rows", type=int, action="append", help=f"rows of a step; {ROWS} if not given")
    parser.add_argument("--kernel", action="append", help="only kernels of this name")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = parser.parse_args(arguments)
    if INTERPRETED:
        parser.error("TRITON_INTERPRET is set: the interpreter's kernels cannot be compiled; unset it")
    found = launches(rows=asked.rows or ROWS)
    if asked.kernel:
        found = [launch for launch in found if launch.name in asked.kernel]
    if asked.once:
        found = first_of_each(found)
    print(HEADER + "matrix instructions, constants", flush=True)
    done = []
    for made in compiled(found, asked.target or list(TARGETS)):
        done.append(made)
        print(row(made), flush=True)
    if asked.out:
        content = {
            "schema_version": 1,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "kernels": [{**asdict(made), "fits": made.fits} for made in done],
        }
        asked.out.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    too_big = [made for made in done if not made.fits]
    for made in too_big:
        print(f"{made.kernel} on {made.target}: {made.shared_bytes} bytes of shared memory; at most "
              f"{SHARED_LIMITS[made.target]}", file=sys.stderr)  # fmt: skip
    return 1 if too_big else 0


if __name__ == "__main__":
    raise SystemExit(main())
