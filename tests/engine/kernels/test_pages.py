from __future__ import annotations

import torch

from engine.kernels.cpu.pages import ALIGNMENT, PAGE_BYTES, STRETCH_BYTES, Arena, Reused, zeros


def test_zeros_hold_what_was_asked_for_and_no_more() -> None:
    for shape, dtype in (((3, 5), torch.float32), ((PAGE_BYTES + 2, 3), torch.int8), ((2**20, 1, 3), torch.bfloat16)):
        found = zeros(shape, dtype)
        assert (found.shape, found.dtype) == (shape, dtype)
        assert found.untyped_storage().nbytes() == found.numel() * dtype.itemsize
        assert not found.any()
        found.fill_(1)
    assert not zeros((2**20,), torch.float32).any()  # what was given back is zero again


def test_an_arena_keeps_copies_apart() -> None:
    arena = Arena()
    big = torch.arange(STRETCH_BYTES // 4 + 1, dtype=torch.int32)  # more than a stretch
    given = [
        torch.arange(7, dtype=torch.uint8),
        torch.randn(5, 3).to(torch.bfloat16),
        torch.randn(64, 2),
        torch.empty(0, 4),
        big,
        torch.arange(9),
    ]
    kept = [arena.keep(tensor) for tensor in given]
    for own, tensor in zip(kept, given, strict=True):
        assert own.dtype == tensor.dtype
        assert torch.equal(own, tensor)
        if tensor.numel():
            assert own.data_ptr() != tensor.data_ptr()
            assert own.data_ptr() % ALIGNMENT == 0
    assert 0 < kept[1].data_ptr() - kept[0].data_ptr() <= 2 * ALIGNMENT  # in the order in which they came


def test_memory_is_lent_again_when_nobody_holds_it() -> None:
    reused = Reused()
    first = reused.empty(4, 100)
    place = first.data_ptr()
    assert (first.shape, first.dtype) == ((4, 100), torch.float32)
    del first
    assert reused.empty(2, 100).data_ptr() == place
    row = reused.empty(4, 100).fill_(3.0)[1:2][0]  # a view holds it all
    other = reused.empty(4, 100).fill_(5.0)
    assert torch.equal(row, torch.full((100,), 3.0))
    del row
    assert reused.empty(4, 100).data_ptr() != other.data_ptr()
    assert torch.equal(other, torch.full((4, 100), 5.0))


def test_no_rows_and_more_rows_than_before() -> None:
    reused = Reused()
    assert reused.empty(0, 100).shape == (0, 100)
    assert reused.empty(1, 100).fill_(1.0).sum() == 100
    assert reused.empty(300, 1000).fill_(1.0).sum() == 300_000
