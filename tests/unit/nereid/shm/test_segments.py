"""Segments, what is read of them, and references that lie."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nereid.core.messages import SharedMemory
from nereid.shm.segments import (
    Lease,
    LostError,
    Mappings,
    Segment,
    Segments,
    memory_domain,
    owner_of,
    read,
)

MIB = 1 << 20


def taken(segments: Segments, size_bytes: int) -> Segment:
    segment = segments.take(size_bytes)
    assert segment is not None
    return segment


def test_what_one_process_writes_another_reads_in_place() -> None:
    segment = taken(Segments(8 * MIB), MIB)
    segment.view[100:105] = b"hello"
    segment_name, offset, size_bytes = segment.range(100, 5)
    program = (
        "import sys;"
        "from nereid.core.messages import SharedMemory;"
        "from nereid.shm.segments import Mappings;"
        f"view = Mappings().view(SharedMemory({segment_name!r}, {offset}, {size_bytes}));"
        "sys.stdout.buffer.write(view); assert view.readonly"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"hello"


def test_a_view_sees_what_is_written_later_and_outlives_the_segment() -> None:
    segments, mappings = Segments(8 * MIB), Mappings()
    segment = taken(segments, MIB)
    view = mappings.view(segment.range(0, 3))
    segment.view[0:3] = b"new"
    segments.discard(segment.name)
    assert bytes(view) == b"new"
    with pytest.raises(LostError):
        read(segment.range(0, 3))


def test_a_mapping_is_kept_until_its_owner_lets_go() -> None:
    segments, mappings = Segments(8 * MIB), Mappings()
    segment = taken(segments, MIB)
    first = mappings.segment(segment.name)
    mappings.sweep()
    assert mappings.segment(segment.name) is first
    segments.discard(segment.name)
    mappings.sweep()
    with pytest.raises(LostError):
        mappings.segment(segment.name)


def lies() -> list[SharedMemory]:
    """References that name no segment, or not the one they mean."""
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
    "lie",
    lies(),
    ids=["empty", "one", "words", "-1", "pipe", "file", "unsealed", "nobody", "path"],
)
def test_a_reference_that_names_no_segment_is_refused(lie: SharedMemory) -> None:
    for look in (Mappings().view, read):
        with pytest.raises(LostError):
            look(lie)


@pytest.mark.parametrize(
    ("offset", "size_bytes"), [(MIB, 1), (0, 2 * MIB), (MIB - 1, 2), (2**63, 2**63), (-1, 1)]
)
def test_a_reference_beyond_its_segment_is_refused(offset: int, size_bytes: int) -> None:
    segment = Segment(MIB)
    with pytest.raises(LostError, match="outside"):
        Mappings().view(SharedMemory(segment.name, offset, size_bytes))


def test_a_descriptor_that_was_used_again_is_noticed() -> None:
    old = Segment(MIB)
    name, descriptor = old.name, old.descriptor
    old.close()
    new = Segment(MIB)
    assert new.descriptor == descriptor, "the system gives the lowest free number"
    with pytest.raises(LostError, match="gone"):
        Mappings().segment(name)


def test_a_segment_keeps_its_size_and_cannot_be_written_from_elsewhere() -> None:
    segment = Segment(MIB)
    for size in (0, 2 * MIB):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(segment.descriptor, size)
    descriptor = os.open(f"/proc/self/fd/{segment.descriptor}", os.O_RDWR)
    with pytest.raises(OSError, match="not permitted"):
        os.pwrite(descriptor, b"x", 0)
    with pytest.raises(OSError, match="not permitted"):
        mmap.mmap(descriptor, MIB)
    os.close(descriptor)
    segment.view[0:1] = b"x"
    assert read(segment.range(0, 1)) == b"x"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_cannot_open_a_segment() -> None:
    segment = Segment(MIB)
    path = f"/proc/{os.getpid()}/fd/{segment.descriptor}"
    program = f"import os; os.setgid(65534); os.setuid(65534); open({path!r}, 'rb')"
    refused = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert b"PermissionError" in refused.stderr
    program = f"open({path!r}, 'rb')"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_freed_segment_is_taken_again() -> None:
    segments = Segments(8 * MIB)
    first = taken(segments, MIB)
    segments.free(first.name)
    assert taken(segments, MIB - 5) is first
    assert taken(segments, MIB) is not first


def test_a_discarded_segment_is_not_taken_again() -> None:
    segments = Segments(8 * MIB)
    first = taken(segments, MIB)
    segments.discard(first.name)
    segments.free(first.name)
    assert taken(segments, MIB).name != first.name
    assert segments.taken == 1


def test_a_much_larger_segment_is_not_wasted_on_a_small_tensor() -> None:
    segments = Segments(64 * MIB)
    large = taken(segments, 16 * MIB)
    segments.free(large.name)
    assert taken(segments, MIB) is not large


def test_segments_are_bounded_and_free_ones_make_room() -> None:
    segments = Segments(4 * MIB)
    first, second = taken(segments, 2 * MIB), taken(segments, 2 * MIB)
    assert segments.take(MIB) is None
    segments.free(first.name)
    third = taken(segments, MIB)
    assert third.size_bytes < first.size_bytes or third is first
    segments.free(second.name)
    segments.free(third.name)
    assert taken(segments, 4 * MIB).size_bytes == 4 * MIB
    assert segments.total_bytes == 4 * MIB


def test_what_nobody_uses_goes_back_to_the_system() -> None:
    segments = Segments(8 * MIB)
    first, second = taken(segments, MIB), taken(segments, MIB)
    segments.free(first.name)
    segments.trim(idle_s=3600)
    assert segments.total_bytes == first.size_bytes + second.size_bytes
    segments.trim(idle_s=0)
    assert segments.total_bytes == second.size_bytes


def test_what_one_user_took_can_be_discarded_alone() -> None:
    segments, one, other = Segments(8 * MIB), object(), object()
    segments.take(MIB, one)
    kept = segments.take(MIB, other)
    segments.discard_of(one)
    assert kept is not None
    assert segments.taken == 1
    segments.free(kept.name)
    assert segments.take(MIB) is kept
    segments.discard_all()
    assert (segments.taken, segments.total_bytes) == (0, 0)


def test_a_lease_that_nobody_holds_discards_its_segment() -> None:
    segments = Segments(8 * MIB)
    lease = Lease(segments, taken(segments, MIB))
    del lease
    assert segments.total_bytes == 0
    segment = taken(segments, MIB)
    lease = Lease(segments, segment)
    lease.free()
    again = taken(segments, MIB)
    lease.free()
    del lease
    assert again is segment
    assert segments.taken == 1, "an old lease has no say in a segment that others have"


def test_memory_is_shared_within_a_domain_only() -> None:
    domain = memory_domain(MIB)
    assert domain
    assert memory_domain(0) == ""
    program = (
        "from nereid.shm.segments import memory_domain; import os;"
        "print(memory_domain(1)); os.setuid(65534); print(memory_domain(1))"
    )
    if os.getuid() == 0:
        told = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
        mine, nobodys = told.stdout.decode().split()
        assert mine == domain
        assert nobodys != domain


def test_a_segments_name_tells_its_owner() -> None:
    assert owner_of(Segment(MIB).name) == str(os.getpid())
