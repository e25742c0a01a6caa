"""What one device does at most: arithmetic, memory bandwidth, memory.

Presets are figures of data sheets, dense (without sparsity), of which ``efficiency`` says what share is reached. What
was measured - given on the command line, or found on this CPU by ``engine.bench ceilings`` - is taken as it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace

from pipeline.errors import SeatrialError
from pipeline.plan.scale.efficiency import CAPACITY_SHARE, COMPUTE_SHARE, MEASURED, MEMORY_SHARE
from pipeline.processes import die_with_parent

MEASURE_LIMIT_S = 600
GIB = 1024**3
THIS = "this"


@dataclass(frozen=True)
class Device:
    """``tflops_16`` and ``tflops_8`` are dense operations of 16-bit and of 8-bit products; the second is None where a
    device has none. ``memory_bytes`` is what an engine may use. ``backend`` is the ledger's: cpu or cuda."""

    name: str
    backend: str
    memory_bytes: int
    gb_per_s: float
    tflops_16: float
    tflops_8: float | None
    source: str
    memory_share: float = MEMORY_SHARE
    compute_share: float = COMPUTE_SHARE

    def flops_per_s(self, eight_bit: bool) -> float:
        """What is reached. A device without 8-bit products computes them in 16 bits."""
        peak = self.tflops_8 if eight_bit and self.tflops_8 is not None else self.tflops_16
        return peak * 1e12 * self.compute_share

    @property
    def bytes_per_s(self) -> float:
        return self.gb_per_s * 1e9 * self.memory_share


def _preset(name: str, gib: float, gb_per_s: float, t16: float, t8: float | None, source: str) -> Device:
    return Device(name, "cuda", round(gib * GIB * CAPACITY_SHARE), gb_per_s, t16, t8, source)


PRESETS = {
    d.name: d
    for d in (
        _preset("t4", 16, 320, 65, 130, "NVIDIA T4 datasheet (2019)"),
        _preset("v100", 32, 900, 125, None, "NVIDIA V100 datasheet (2020), SXM2"),
        _preset("a100-40", 40, 1555, 312, 624, "NVIDIA A100 datasheet (2021), SXM4 40 GB"),
        _preset("a100", 80, 2039, 312, 624, "NVIDIA A100 datasheet (2021), SXM4 80 GB"),
        _preset("h100", 80, 3350, 989, 1979, "NVIDIA H100 datasheet (2023), SXM5"),
        _preset("h100-pcie", 80, 2000, 756, 1513, "NVIDIA H100 datasheet (2023), PCIe"),
        _preset("h200", 141, 4800, 989, 1979, "NVIDIA H200 datasheet (2024), SXM"),
        _preset("b200", 180, 7700, 2250, 4500, "NVIDIA DGX B200 datasheet (2024), an eighth of the system"),
        _preset("l4", 24, 300, 121, 242, "NVIDIA L4 datasheet (2023)"),
        _preset("l40s", 48, 864, 362, 733, "NVIDIA L40S datasheet (2023)"),
        _preset("mi300x", 192, 5300, 1307, 2614, "AMD Instinct MI300X datasheet (2023)"),
    )
}


def device_of(
    name: str,
    gb_per_s: float | None = None,
    tflops: float | None = None,
    memory_gib: float | None = None,
) -> Device:
    """A preset, this CPU, or a name of one's own with figures. A figure that is given stands in place of the preset's,
    and is taken to be measured.

    Raises:
        SeatrialError: an unknown name without all three figures; this machine cannot be measured.
    """
    found = PRESETS.get(name)
    if found is None and name == THIS:
        found = measured_cpu()
    if found is None:
        missing = [
            option
            for option, value in (
                ("--device-gbs", gb_per_s),
                ("--device-tflops", tflops),
                ("--device-memory-gib", memory_gib),
            )
            if value is None
        ]
        if missing:
            raise SeatrialError(
                f"--device {name!r} is no preset ({', '.join(PRESETS)}; {THIS}: this CPU, measured); a device of one's "
                f"own needs its figures: give {', '.join(missing)} as well"
            )
        found = Device(name, "cpu", 0, 0.0, 0.0, None, "given figures")
    if gb_per_s is not None:
        found = replace(found, gb_per_s=gb_per_s, memory_share=MEASURED)
    if tflops is not None:
        found = replace(found, tflops_16=tflops, tflops_8=None, compute_share=MEASURED)
    if memory_gib is not None:
        found = replace(found, memory_bytes=round(memory_gib * GIB))
    return found


def measured_cpu() -> Device:
    """This CPU: the engine's bench measures it in a process of its own, which takes seconds (minutes where the kernels
    are not compiled yet).

    Raises:
        SeatrialError: no compiler, or the measurement failed.
    """
    command = [sys.executable, "-m", "engine.bench", "ceilings"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MEASURE_LIMIT_S, preexec_fn=die_with_parent
        )
        if done.returncode:
            raise SeatrialError(
                f"this CPU cannot be measured: {done.stderr.strip() or f'exit code {done.returncode}'}; give its "
                "figures instead: --device NAME --device-gbs --device-tflops --device-memory-gib"
            )
        return of_ceilings(done.stdout)
    except subprocess.TimeoutExpired as e:
        raise SeatrialError(f"measuring this CPU took more than {MEASURE_LIMIT_S} s; give its figures instead") from e


def of_ceilings(line: str) -> Device:
    """From the line that ``engine.bench ceilings`` prints. Products are float32's where the CPU has no bf16 ones.

    Raises:
        SeatrialError: another line.
    """
    import psutil

    try:
        found = json.loads(line)
        gops = {str(k): float(v) for k, v in found["gops"].items()}
        read = float(found["read_gb_per_s"])
        wide = gops.get("bf16") or gops["float32"]
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise SeatrialError(
            f"measuring this CPU gave {line.strip()!r}, expected a line of JSON with its ceilings"
        ) from e
    eight = gops.get("int8")
    memory = round(psutil.virtual_memory().total * CAPACITY_SHARE)
    return Device(
        THIS, "cpu", memory, read, wide / 1000, eight / 1000 if eight else None,
        f"measured here: {found.get('threads')} threads", MEASURED, MEASURED,
    )  # fmt: skip
