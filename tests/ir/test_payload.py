"""Memory that blocks of large tensors share, one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from irc.ir.payload import BLOCK, scratch

SHAPE = (256, 1024)


def test_memory_is_used_again_once_its_last_view_is_gone() -> None:
    first = scratch(SHAPE, np.dtype(np.float32))
    first[...] = 1
    view = first.reshape(-1)[7:].view(np.int8)[::2].reshape(-1, 2)
    before = view.copy()
    del first
    others = [scratch(SHAPE, np.dtype(np.float32)) for _ in range(20)]
    for other in others:
        other[...] = 2
    assert not any(np.may_share_memory(view, other) for other in others)
    assert np.array_equal(view, before)
    address = view.__array_interface__["data"][0]
    del view
    again = scratch(SHAPE, np.dtype(np.float32))
    assert 0 <= address - again.__array_interface__["data"][0] < again.nbytes


@pytest.mark.parametrize("size", [0, 1, (64 << 10) - 1, 64 << 10, BLOCK, BLOCK + 1])
def test_arrays_of_any_size_can_be_written(size: int) -> None:
    array = scratch((size,), np.dtype(np.uint8))
    assert (array.shape, array.dtype) == ((size,), np.uint8)
    array[...] = 3
    assert array.sum() == 3 * size
