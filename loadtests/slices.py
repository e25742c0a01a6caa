"""Short time slices for the load client, so that it is woken soon where every processor computes.

Linux gives whoever computes its slice of some 3 ms before whoever wakes; one that asked for a shorter slice comes first
(EEVDF, from Linux 6.12 on: sched_setattr(2), sched_runtime). What it gets of the processors in all stays the same.
"""

from __future__ import annotations

import ctypes
import os
import platform

SLICE_NS = 100_000
_CALL = {"x86_64": 314, "aarch64": 274}  # sched_setattr, which the C library has no name for


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32), ("policy", ctypes.c_uint32), ("flags", ctypes.c_uint64), ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32), ("runtime", ctypes.c_uint64), ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )  # fmt: skip


def ask_for_short_slices() -> bool:
    """For the calling thread; whether the kernel took it (an older one does and changes nothing)."""
    if platform.system() != "Linux" or (call := _CALL.get(platform.machine())) is None:
        return False
    if os.sched_getscheduler(0) != os.SCHED_OTHER:  # whoever was given another policy keeps it
        return False
    asked = _Attributes(
        size=ctypes.sizeof(_Attributes), policy=os.SCHED_OTHER, nice=os.getpriority(os.PRIO_PROCESS, 0),
        runtime=SLICE_NS,
    )  # fmt: skip
    refused: int = ctypes.CDLL(None).syscall(call, 0, ctypes.byref(asked), 0)
    return refused == 0
