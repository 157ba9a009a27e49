"""The memory that a worker puts the tensors of its model's requests in."""

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nereid.shm.mappings import SegmentLostError, SegmentMappings, exists
from nereid.shm.reference import SharedMemory
from nereid_executor.backends.python.worker_site.nereid_worker.connection import request_segments

RequestSegmentPool = request_segments.RequestSegmentPool
SegmentLease = request_segments.SegmentLease

MIB = 1 << 20


@pytest.fixture
def segments() -> Iterator[RequestSegmentPool]:
    segments = RequestSegmentPool(8 * MIB, 3600)
    yield segments
    # Without free segments no timer is set again.
    while segments._free:
        segments.discard(segments._free.pop())
    if segments._trim_timer is not None:
        segments._trim_timer.cancel()


def lent(segments: RequestSegmentPool, *sizes: int) -> SegmentLease:
    lease = segments.lend_copy([bytes(size) for size in sizes])
    assert lease is not None
    return lease


def test_other_processes_can_read_lent_tensors(segments: RequestSegmentPool) -> None:
    tensors: list[Any] = [
        np.arange(50_000, dtype=np.float32).reshape(2, -1),
        b"",
        memoryview(b"abc"),
        np.ones(3, np.float16),
    ]
    lease = segments.lend_copy(tensors)
    assert lease is not None
    mappings = SegmentMappings()
    for tensor, place in zip(tensors, lease.places, strict=True):
        assert place.offset % 64 == 0
        assert bytes(mappings.view(SharedMemory(*place))) == bytes(memoryview(tensor))


@pytest.mark.parametrize(("limit", "size"), [(8 * MIB, (1 << 16) - 64), (0, MIB), (MIB, 2 * MIB)])
def test_small_and_too_large_tensors_are_not_lent(limit: int, size: int) -> None:
    assert RequestSegmentPool(limit).lend_copy([bytes(size)]) is None


def test_free_segments_are_reused(segments: RequestSegmentPool) -> None:
    first = lent(segments, MIB)
    (place,) = first.places
    first.free()
    # Only for tensors of a similar size.
    assert lent(segments, MIB // 4).places[0].segment != place.segment
    assert lent(segments, MIB - 10_000).places[0].segment == place.segment
    # Freeing it again has no effect.
    first.free()
    assert not [each for each in segments._free if each.name == place.segment]


def test_segments_that_may_still_be_read_are_never_reused(segments: RequestSegmentPool) -> None:
    lease = lent(segments, MIB)
    (place,) = lease.places
    view = SegmentMappings().view(SharedMemory(*place))
    del lease
    gc.collect()
    assert segments.total == 0
    other = segments.lend_copy([b"\1" * MIB])
    assert other is not None
    assert bytes(view) == bytes(MIB)
    # It can no longer be opened.
    with pytest.raises(SegmentLostError):
        SegmentMappings().view(SharedMemory(*place))


def test_the_limit_counts_free_and_used_segments(segments: RequestSegmentPool) -> None:
    leases = [lent(segments, 3 * MIB), lent(segments, 3 * MIB)]
    assert segments.lend_copy([bytes(3 * MIB)]) is None
    leases.pop().free()
    # Free segments are closed to make space for another size.
    leases.append(lent(segments, 4 * MIB))
    assert segments.total <= 8 * MIB


def test_idle_segments_are_closed() -> None:
    segments = RequestSegmentPool(8 * MIB, idle_s=0.0)
    lease = lent(segments, MIB)
    name = lease.places[0].segment
    lease.free()
    timer = segments._trim_timer
    if timer is not None:
        timer.join(10)
    assert not exists(name)
    assert segments.total == 0


def test_without_descriptors_nothing_is_lent(
    segments: RequestSegmentPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> int:
        raise OSError("Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    assert segments.lend_copy([bytes(MIB)]) is None
    assert segments.total == 0


def test_threads_never_share_a_segment(segments: RequestSegmentPool) -> None:
    wrong = []

    def work(number: int) -> None:
        for _ in range(50):
            lease = segments.lend_copy([bytes([number]) * 100_000])
            if lease is not None:
                seen = bytes(SegmentMappings().view(SharedMemory(*lease.places[0])))
                if seen != bytes([number]) * 100_000:
                    wrong.append(number)
                lease.free()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
