"""Tensors in shared memory, as a worker reads and writes them."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from nereid.core.messages import SharedMemory
from nereid.services.executor.backends.python.worker_site.nereid_worker import memory, wire
from nereid.services.executor.backends.python.worker_site.nereid_worker.errors import (
    TritonModelException,
)
from nereid.shm.segments import Segment, SegmentPool

MIB = 1 << 20


@pytest.fixture
def segments() -> Iterator[SegmentPool]:
    segments = SegmentPool(64 * MIB, writable=True)
    yield segments
    segments.discard_used_segments()
    segments.trim(0)


@pytest.fixture
def segment(segments: SegmentPool) -> Segment:
    segment = segments.acquire_segment(MIB)
    assert segment is not None
    return segment


def place(segment: Segment, offset: int, size: int) -> wire.Range:
    return wire.Range(*segment.range(offset, size))


@pytest.mark.parametrize(("offset", "size"), [(0, 10), (64, 100_000), (8192, 5), (4160, 0)])
def test_inputs_are_read_where_they_lie(segment: Segment, offset: int, size: int) -> None:
    data = np.random.default_rng(1).bytes(size)
    segment.view[offset : offset + size] = data
    assert bytes(memory.Inputs().view(place(segment, offset, size))) == data


def test_what_the_model_writes_nobody_else_sees(segment: Segment) -> None:
    array = np.frombuffer(memory.Inputs().view(place(segment, 64, 100)), np.uint8)
    array[:] = 7
    assert bytes(segment.view[64:164]) == bytes(100)


def test_what_is_kept_does_not_change(segment: Segment) -> None:
    inputs = memory.Inputs()
    kept = np.frombuffer(inputs.view(place(segment, 64, 100_000)), np.uint8)
    gone = inputs.view(place(segment, 200_000, 10))
    assert inputs.used
    del gone
    inputs.keep()
    segment.view[:] = b"\1" * len(segment.view)
    assert not kept.any()


def test_what_is_not_kept_is_somebody_elses(segment: Segment) -> None:
    array = np.frombuffer(memory.Inputs().view(place(segment, 0, 100_000)), np.uint8)
    segment.view[:] = b"\1" * len(segment.view)
    assert array.all()


@pytest.mark.parametrize(
    "segment_name", ["1.2", "x", "", f"{1 << 22}.3.4", "1.99999.5", f"{'{pid}'}.{'{descriptor}'}.1"]
)
def test_what_is_not_there(segment: Segment, segment_name: str) -> None:
    pid, descriptor, _ = segment.name.split(".")
    segment_name = segment_name.format(pid=pid, descriptor=descriptor)
    with pytest.raises(TritonModelException, match="is gone"):
        memory.Inputs().view(wire.Range(segment_name, 0, 1))


def test_what_lies_outside(segment: Segment) -> None:
    with pytest.raises(TritonModelException, match="outside"):
        memory.Inputs().view(place(segment, 8, segment.size_bytes))


def test_outputs_are_put_side_by_side(segment: Segment) -> None:
    room = wire.Range(*segment.range(0, segment.size_bytes))
    tensors = [b"a" * 70_000, memoryview(b"b" * 3), b""]
    placed = memory.put(tensors, room)
    assert [each.size for each in placed] == [70_000, 3, 0]
    for tensor, each in zip(tensors, placed, strict=True):
        reference = SharedMemory(*each)
        assert reference.offset % 64 == 0
        end = reference.offset + reference.size_bytes
        assert bytes(segment.view[reference.offset : end]) == bytes(tensor)


@pytest.mark.parametrize("size", [10, 2 * MIB])
def test_small_and_too_large_outputs_stay_where_they_are(segment: Segment, size: int) -> None:
    tensors = [bytes(size)]
    assert memory.put(tensors, wire.Range(*segment.range(0, segment.size_bytes))) is tensors


def test_a_room_that_is_gone_is_not_used(segments: SegmentPool, segment: Segment) -> None:
    room = wire.Range(*segment.range(0, segment.size_bytes))
    segments.discard(segment.name)
    tensors = [bytes(100_000)]
    assert memory.put(tensors, room) is tensors


def test_what_is_borrowed_is_given_back_with_its_last_view(segment: Segment) -> None:
    segment.view[64:67] = b"abc"
    segment.view[9000:9003] = b"def"
    given_back: list[str] = []
    ranges = [place(segment, 9000, 3), place(segment, 64, 3), place(segment, 128, 0)]
    tensors = memory.borrowed(ranges, lambda: given_back.append("now"))
    assert [bytes(each) for each in tensors] == [b"def", b"abc", b""]
    array = np.frombuffer(tensors[1], np.uint8)
    array[:] = 7
    assert bytes(segment.view[64:67]) == b"abc", "what the model writes is its own"
    tensors.clear()
    gc.collect()
    assert not given_back
    del array
    gc.collect()
    assert given_back == ["now"]


@pytest.mark.parametrize(("offset", "size"), [(0, 2 * MIB), (MIB, 1), (0, 0)])
def test_what_cannot_be_borrowed(segment: Segment, offset: int, size: int) -> None:
    with pytest.raises(TritonModelException):
        memory.borrowed([place(segment, offset, size)], lambda: pytest.fail("it is not there"))
