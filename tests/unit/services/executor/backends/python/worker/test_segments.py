"""Memory that a worker shares with whoever executes what its model asks for."""

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nereid.core.messages import SharedMemory
from nereid.services.executor.backends.python.worker_site.nereid_worker.segments import (
    Lease,
    Segments,
)
from nereid.shm.mappings import SegmentLostError, SegmentMappings, exists

MIB = 1 << 20


@pytest.fixture
def segments() -> Iterator[Segments]:
    segments = Segments(8 * MIB, 3600)
    yield segments
    # What is free goes at once, and with it the timer.
    while segments._free:
        segments.discard(segments._free.pop())
    if segments._tidying is not None:
        segments._tidying.cancel()


def lent(segments: Segments, *sizes: int) -> Lease:
    lease = segments.lend([bytes(size) for size in sizes])
    assert lease is not None
    return lease


def test_others_read_what_is_lent(segments: Segments) -> None:
    tensors: list[Any] = [
        np.arange(50_000, dtype=np.float32).reshape(2, -1),
        b"",
        memoryview(b"abc"),
        np.ones(3, np.float16),
    ]
    lease = segments.lend(tensors)
    assert lease is not None
    mappings = SegmentMappings()
    for tensor, place in zip(tensors, lease.places, strict=True):
        assert place.offset % 64 == 0
        assert bytes(mappings.view(SharedMemory(*place))) == bytes(memoryview(tensor))


@pytest.mark.parametrize(("limit", "size"), [(8 * MIB, (1 << 16) - 64), (0, MIB), (MIB, 2 * MIB)])
def test_small_and_too_large_tensors_are_not_lent(limit: int, size: int) -> None:
    assert Segments(limit).lend([bytes(size)]) is None


def test_what_is_free_is_lent_again(segments: Segments) -> None:
    first = lent(segments, MIB)
    (place,) = first.places
    first.free()
    # Only one of about the size is taken.
    assert lent(segments, MIB // 4).places[0].segment != place.segment
    assert lent(segments, MIB - 10_000).places[0].segment == place.segment
    # Once given back it is not given back again.
    first.free()
    assert not [each for each in segments._free if each.name == place.segment]


def test_what_may_be_read_is_never_lent_again(segments: Segments) -> None:
    lease = lent(segments, MIB)
    (place,) = lease.places
    view = SegmentMappings().view(SharedMemory(*place))
    del lease
    gc.collect()
    assert segments.total == 0
    other = segments.lend([b"\1" * MIB])
    assert other is not None
    assert bytes(view) == bytes(MIB)
    # Who has not opened it yet finds that it is gone.
    with pytest.raises(SegmentLostError):
        SegmentMappings().view(SharedMemory(*place))


def test_the_bound_counts_what_is_free_and_what_is_not(segments: Segments) -> None:
    leases = [lent(segments, 3 * MIB), lent(segments, 3 * MIB)]
    assert segments.lend([bytes(3 * MIB)]) is None
    leases.pop().free()
    # What is free makes room for another size.
    leases.append(lent(segments, 4 * MIB))
    assert segments.total <= 8 * MIB


def test_what_nobody_uses_goes_back_to_the_system() -> None:
    segments = Segments(8 * MIB, idle_s=0.0)
    lease = lent(segments, MIB)
    name = lease.places[0].segment
    lease.free()
    timer = segments._tidying
    if timer is not None:
        timer.join(10)
    assert not exists(name)
    assert segments.total == 0


def test_without_descriptors_nothing_is_lent(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> int:
        raise OSError("Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    assert segments.lend([bytes(MIB)]) is None
    assert segments.total == 0


def test_many_threads_do_not_get_each_others_memory(segments: Segments) -> None:
    wrong = []

    def work(number: int) -> None:
        for _ in range(50):
            lease = segments.lend([bytes([number]) * 100_000])
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
