"""The reader's side: mappings, and references that are stale or forged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nereid.shm.mappings import SegmentLostError, SegmentMappings, read
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import Segment, SegmentPool

MIB = 1 << 20


def taken(segments: SegmentPool, size_bytes: int) -> Segment:
    segment = segments.acquire_segment(size_bytes)
    assert segment is not None
    return segment


def test_one_process_reads_in_place_what_another_has_written() -> None:
    segment = taken(SegmentPool(8 * MIB), MIB)
    segment.view[100:105] = b"hello"
    segment_name, offset, size_bytes = segment.range(100, 5)
    program = (
        "import sys;"
        "from nereid.shm.reference import SharedMemory;"
        "from nereid.shm.mappings import SegmentMappings;"
        f"view = SegmentMappings().view(SharedMemory({segment_name!r}, {offset}, {size_bytes}));"
        "sys.stdout.buffer.write(view); assert view.readonly"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"hello"


def test_a_view_sees_what_is_written_later_and_outlives_the_segment() -> None:
    segments, mappings = SegmentPool(8 * MIB), SegmentMappings()
    segment = taken(segments, MIB)
    view = mappings.view(segment.range(0, 3))
    segment.view[0:3] = b"new"
    segments.discard(segment.name)
    assert bytes(view) == b"new"
    with pytest.raises(SegmentLostError):
        read(segment.range(0, 3))


def test_a_mapping_is_kept_until_its_owner_discards_the_segment() -> None:
    segments, mappings = SegmentPool(8 * MIB), SegmentMappings()
    segment = taken(segments, MIB)
    first = mappings.segment(segment.name)
    mappings.sweep()
    assert mappings.segment(segment.name) is first
    segments.discard(segment.name)
    mappings.sweep()
    with pytest.raises(SegmentLostError):
        mappings.segment(segment.name)


def bad_references() -> list[SharedMemory]:
    """References that name no segment, or something else."""
    me = os.getpid()
    reading, _writing = os.pipe()
    with Path(__file__).open() as file:
        kept = os.dup(file.fileno())
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, MIB)

    def number(descriptor: int) -> int:
        return os.fstat(descriptor).st_ino

    segment_names = [
        "",
        "1",
        "a.b.c",
        f"{me}.-1.5",
        f"{me}.{reading}.{number(reading)}",
        f"{me}.{kept}.{number(kept)}",
        f"{me}.{unsealed}.{number(unsealed)}",
        f"{2**22 + 1}.3.4",
        f"../../etc.{me}.1",
    ]
    return [SharedMemory(segment_name, 0, 1) for segment_name in segment_names]


@pytest.mark.parametrize(
    "reference",
    bad_references(),
    ids=["empty", "one", "words", "-1", "pipe", "file", "unsealed", "no process", "path"],
)
def test_a_reference_that_names_no_segment_is_refused(reference: SharedMemory) -> None:
    for look in (SegmentMappings().view, read):
        with pytest.raises(SegmentLostError):
            look(reference)


@pytest.mark.parametrize(
    ("offset", "size_bytes"), [(MIB, 1), (0, 2 * MIB), (MIB - 1, 2), (2**63, 2**63), (-1, 1)]
)
def test_a_reference_beyond_its_segment_is_refused(offset: int, size_bytes: int) -> None:
    segment = Segment(MIB)
    with pytest.raises(SegmentLostError, match="outside"):
        SegmentMappings().view(SharedMemory(segment.name, offset, size_bytes))


def test_a_descriptor_that_was_reused_is_noticed() -> None:
    old = Segment(MIB)
    name, descriptor = old.name, old.descriptor
    old.close()
    new = Segment(MIB)
    assert new.descriptor == descriptor, "the system gives the lowest free number"
    with pytest.raises(SegmentLostError, match="gone"):
        SegmentMappings().segment(name)
