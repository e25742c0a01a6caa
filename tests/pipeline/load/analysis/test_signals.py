from __future__ import annotations

import numpy as np
import pytest

from pipeline.load.analysis.signals import ttft_signal
from tests.pipeline.load.analysis.planted import frame, request


def test_a_user_who_left_keeps_the_first_token_that_came() -> None:
    left = {"status": "abandoned", "end_s": 1.5}
    rows = [
        request(0, 0.0, 0.1, []),
        request(1, 1.0, 0.2, [], **left),
        request(2, 1.0, 0.2, [], **left, token_times_s=[]),
        request(3, 2.0, 0.3, [], status="timeout"),
    ]
    signal = ttft_signal(frame(rows), "s", 0.0, 3.0, closed=False)
    assert signal.v_ms.tolist() == pytest.approx([100.0, 200.0, np.inf, np.inf])
