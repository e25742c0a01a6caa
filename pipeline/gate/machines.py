"""Classes of machines that limits are for. A limit chosen on one class says nothing of another."""

from __future__ import annotations

import re
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.provenance import Machine

WIDEST = (
    "amx_int8",
    "avx512_vnni",
    "avx512f",
    "avx_vnni",
    "avx2",
    "i8mm",
    "asimddp",
)  # what integer kernels gain most by


class MachineClass(BaseModel):
    """Machines that one set of limits is for; what is not given is not asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cores: tuple[int, int] | None = Field(None, description="[least, most] CPUs that the process may use")
    memory_gib: int | None = Field(None, ge=1, description="least")
    isa: list[str] = Field([], description="instructions that must be there, for instance avx512_vnni")
    accelerator: str | None = Field(
        None, description="regular expression for every accelerator's name; 'none': there may be none"
    )

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.cores is not None and not 1 <= self.cores[0] <= self.cores[1]:
            raise ValueError(f"cores {list(self.cores)}: expected [least, most], from 1 on")
        try:
            re.compile(self.accelerator or "")
        except re.error as e:
            raise ValueError(f"accelerator {self.accelerator!r} is no regular expression: {e}") from e
        return self

    def mismatch(self, machine: Machine) -> str | None:
        """Why ``machine`` is not of this class; None if it is."""
        if self.cores is not None and not self.cores[0] <= machine.cores <= self.cores[1]:
            return f"{machine.cores} cores, not {self.cores[0]} to {self.cores[1]}"
        if self.memory_gib is not None and machine.memory_gib < self.memory_gib:
            return f"{machine.memory_gib} GiB, not {self.memory_gib}"
        if missing := [x for x in self.isa if x not in machine.isa]:
            return f"no {missing[0]}"
        if self.accelerator == "none" and machine.accelerators:
            return f"an accelerator ({machine.accelerators[0]}), not none"
        if self.accelerator not in (None, "none"):
            if not machine.accelerators:
                return f"no accelerator, not {self.accelerator}"
            if odd := [a for a in machine.accelerators if not re.search(str(self.accelerator), a)]:
                return f"accelerator {odd[0]}, not {self.accelerator}"
        return None


def class_of(machine: Machine) -> str:
    """A machine in one word, for people: the accelerators' names, or ``cpu/2-core/avx512_vnni``."""
    if machine.accelerators:
        return "+".join(machine.accelerators)
    widest = next((x for x in WIDEST if x in machine.isa), "baseline")
    return f"cpu/{machine.cores}-core/{widest}"
