"""The patient locustfile on a machine whose clock is set differently: ``SKEW_S`` seconds ahead of this one's."""

import os
import time

from loadtests.clocks import Clock
from tests.loadtests.patient_locustfile import *  # noqa: F403
from tests.loadtests.patient_locustfile import run

_skew_s = float(os.environ["SKEW_S"])
run.clock = Clock(lambda: time.monotonic() + _skew_s, f"ahead by {_skew_s} s")
