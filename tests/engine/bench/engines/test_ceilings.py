"""The ceilings are those of a machine, not of a compiler's mood."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.bench.engines.ceilings import CeilingMeter, _last_cache_bytes, meter
from engine.isa import isa_features


def test_they_are_plausible() -> None:
    found, why = meter(2)
    if found is None:
        pytest.skip(why)
    measured = found.measure()
    assert 0.1 < measured.read_gb_per_s < 10_000
    assert set(measured.gops) == set(found.names)
    assert "float32" in measured.gops
    assert all(0.1 < value < 1e6 for value in measured.gops.values())
    if "avx512_vnni" in isa_features():
        assert found.names["int8"] == "AVX-512 VNNI"


@pytest.mark.skipif("avx512_vnni" not in isa_features(), reason="no AVX-512 VNNI")
def test_a_product_of_bytes_is_worth_more_than_one_of_floats() -> None:
    """Four times the lanes at the same width on the same units. Of several measurements: where others run, one of the
    two may have been paused."""
    found = CeilingMeter(1)
    measured = (found.measure().gops for _ in range(20))
    assert any(m["int8"] > m["float32"] for m in measured)


@pytest.mark.skipif("avx2" not in isa_features(), reason="no AVX2")
def test_a_lesser_instruction_set_has_lesser_names() -> None:
    found = CeilingMeter(1, target="-march=haswell")
    assert found.names == {"int8": "AVX2, vpmaddubsw", "float32": "AVX2, FMA"}
    assert all(value > 0 for value in found.measure().gops.values())


def test_the_last_cache_counts(tmp_path: Path) -> None:
    for i, size in enumerate(("32K", "1024K", "36608K", "2M")):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(size + "\n")
    assert _last_cache_bytes(tmp_path) == 36608 * 1024
    assert _last_cache_bytes(tmp_path / "nowhere") == 0
