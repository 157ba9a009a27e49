"""Tensors in shared memory, as a worker reads and writes them."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from nereid.shm.reference import SharedMemory
from nereid.shm.segments import Segment, SegmentPool
from nereid_executor.backends.python.worker_site.nereid_worker.connection import shared_tensors
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.values.errors import (
    TritonModelException,
)

MIB = 1 << 20


@pytest.fixture
def segments() -> Iterator[SegmentPool]:
    segments = SegmentPool(64 * MIB, writable=True)
    yield segments
    segments.discard_segments_of(None)
    segments.trim(0)


@pytest.fixture
def segment(segments: SegmentPool) -> Segment:
    segment = segments.acquire_segment(MIB)
    assert segment is not None
    return segment


def place(segment: Segment, offset: int, size: int) -> wire.Range:
    return wire.Range(*segment.range(offset, size))


@pytest.mark.parametrize(("offset", "size"), [(0, 10), (64, 100_000), (8192, 5), (4160, 0)])
def test_inputs_are_read_in_place(segment: Segment, offset: int, size: int) -> None:
    data = np.random.default_rng(1).bytes(size)
    segment.view[offset : offset + size] = data
    assert bytes(shared_tensors.MappedInputs().view(place(segment, offset, size))) == data


def test_writes_to_an_input_are_private_to_the_process(segment: Segment) -> None:
    array = np.frombuffer(shared_tensors.MappedInputs().view(place(segment, 64, 100)), np.uint8)
    array[:] = 7
    assert bytes(segment.view[64:164]) == bytes(100)


def test_an_input_that_is_copied_is_the_models_own(segment: Segment) -> None:
    segment.view[64:164] = b"a" * 100
    copied = shared_tensors.copy_of(place(segment, 64, 100))
    assert copied is not None
    array = np.frombuffer(copied, np.uint8)
    segment.view[64:164] = b"b" * 100
    assert bytes(array) == b"a" * 100
    array[:] = 7
    assert bytes(segment.view[64:164]) == b"b" * 100


def test_inputs_outside_of_their_segment_are_not_copied(segment: Segment) -> None:
    with pytest.raises(TritonModelException, match="outside"):
        shared_tensors.copy_of(place(segment, segment.size_bytes - 8, 9))
    with pytest.raises(TritonModelException, match="is gone"):
        shared_tensors.copy_of(wire.Range(f"{segment.name}0", 0, 9))


def test_very_large_inputs_and_segments_are_not_copied(segments: SegmentPool) -> None:
    large = segments.acquire_segment(8 * MIB)
    assert large is not None
    assert shared_tensors.copy_of(place(large, 0, 2 * MIB)) is None
    assert shared_tensors.copy_of(place(large, 0, 8)) is None


def test_used_segments_keep_their_mappings(segments: SegmentPool) -> None:
    mappings = shared_tensors.KeptMappings(most=2, idle_s=3600)
    names = []
    for _ in range(3):
        segment = segments.acquire_segment(MIB)
        assert segment is not None
        names.append(segment.name)
    views = [mappings.view(name) for name in names[:2]]
    assert mappings.view(names[0]) is views[0]
    mappings.view(names[2])
    assert len(mappings) == 2
    assert mappings.view(names[0]) is views[0], "the one that was used last is kept"
    assert mappings._sweep()
    assert mappings.view(names[2]) is not None
    mappings._sweep()
    assert len(mappings) == 1, "what was not used since the last time is given up"
    assert not mappings._sweep()
    assert len(mappings) == 0


def test_copied_inputs_do_not_change(segment: Segment) -> None:
    inputs = shared_tensors.MappedInputs()
    kept = np.frombuffer(inputs.view(place(segment, 64, 100_000)), np.uint8)
    gone = inputs.view(place(segment, 200_000, 10))
    assert len(inputs._maps) == 2
    del gone
    inputs.copy_held()
    segment.view[:] = b"\1" * len(segment.view)
    assert not kept.any()


def test_inputs_that_are_not_copied_change_with_the_segment(segment: Segment) -> None:
    array = np.frombuffer(shared_tensors.MappedInputs().view(place(segment, 0, 100_000)), np.uint8)
    segment.view[:] = b"\1" * len(segment.view)
    assert array.all()


@pytest.mark.parametrize(
    "segment_name", ["1.2", "x", "", f"{1 << 22}.3.4", "1.99999.5", f"{'{pid}'}.{'{descriptor}'}.1"]
)
def test_segments_that_do_not_exist(segment: Segment, segment_name: str) -> None:
    pid, descriptor, _ = segment.name.split(".")
    segment_name = segment_name.format(pid=pid, descriptor=descriptor)
    with pytest.raises(TritonModelException, match="is gone"):
        shared_tensors.MappedInputs().view(wire.Range(segment_name, 0, 1))


def test_ranges_outside_the_segment(segment: Segment) -> None:
    with pytest.raises(TritonModelException, match="outside"):
        shared_tensors.MappedInputs().view(place(segment, 8, segment.size_bytes))


def test_outputs_are_written_side_by_side(segment: Segment) -> None:
    buffer = wire.Range(*segment.range(0, segment.size_bytes))
    tensors = [b"a" * 70_000, memoryview(b"b" * 3), b""]
    placed = shared_tensors.write_outputs(tensors, buffer)
    assert [each.size for each in placed] == [70_000, 3, 0]
    for tensor, each in zip(tensors, placed, strict=True):
        reference = SharedMemory(*each)
        assert reference.offset % 64 == 0
        end = reference.offset + reference.size_bytes
        assert bytes(segment.view[reference.offset : end]) == bytes(tensor)


@pytest.mark.parametrize("size", [10, 2 * MIB])
def test_small_and_too_large_outputs_are_not_written(segment: Segment, size: int) -> None:
    tensors = [bytes(size)]
    assert (
        shared_tensors.write_outputs(tensors, wire.Range(*segment.range(0, segment.size_bytes)))
        is tensors
    )


def test_a_discarded_buffer_is_not_used(segments: SegmentPool, segment: Segment) -> None:
    buffer = wire.Range(*segment.range(0, segment.size_bytes))
    segments.discard(segment.name)
    tensors = [bytes(100_000)]
    assert shared_tensors.write_outputs(tensors, buffer) is tensors


def test_a_response_is_released_with_its_last_view(segment: Segment) -> None:
    segment.view[64:67] = b"abc"
    segment.view[9000:9003] = b"def"
    released: list[str] = []
    ranges = [place(segment, 9000, 3), place(segment, 64, 3), place(segment, 128, 0)]
    tensors = shared_tensors.map_response(ranges, lambda: released.append("now"))
    assert [bytes(each) for each in tensors] == [b"def", b"abc", b""]
    array = np.frombuffer(tensors[1], np.uint8)
    array[:] = 7
    assert bytes(segment.view[64:67]) == b"abc", "what the model writes is its own"
    tensors.clear()
    gc.collect()
    assert not released
    del array
    gc.collect()
    assert released == ["now"]


@pytest.mark.parametrize(("offset", "size"), [(0, 2 * MIB), (MIB, 1), (0, 0)])
def test_responses_that_cannot_be_mapped(segment: Segment, offset: int, size: int) -> None:
    with pytest.raises(TritonModelException):
        shared_tensors.map_response(
            [place(segment, offset, size)], lambda: pytest.fail("it is not there")
        )
