"""The writer's side: segments and their pool."""

import mmap
import os
import subprocess
import sys

import pytest

from nereid.shm.mappings import read
from nereid.shm.segments import (
    DISCARDED,
    FREE,
    IN_USE,
    Lease,
    Segment,
    SegmentPool,
    segment_owner,
    shm_namespace,
)

MIB = 1 << 20


def taken(segments: SegmentPool, size_bytes: int) -> Segment:
    segment = segments.acquire_segment(size_bytes)
    assert segment is not None
    return segment


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


def test_a_freed_segment_is_reused() -> None:
    segments = SegmentPool(8 * MIB)
    first = taken(segments, MIB)
    segments.free_segment(first.name)
    assert taken(segments, MIB - 5) is first
    assert taken(segments, MIB) is not first


def test_a_discarded_segment_is_not_reused() -> None:
    segments = SegmentPool(8 * MIB)
    first = taken(segments, MIB)
    segments.discard(first.name)
    segments.free_segment(first.name)
    assert taken(segments, MIB).name != first.name
    assert segments.used_count == 1


def test_a_much_larger_segment_is_not_wasted_on_a_small_tensor() -> None:
    segments = SegmentPool(64 * MIB)
    large = taken(segments, 16 * MIB)
    segments.free_segment(large.name)
    assert taken(segments, MIB) is not large


def test_the_pool_is_bounded_and_closes_free_segments_for_others() -> None:
    segments = SegmentPool(4 * MIB)
    first, second = taken(segments, 2 * MIB), taken(segments, 2 * MIB)
    assert segments.acquire_segment(MIB) is None
    segments.free_segment(first.name)
    third = taken(segments, MIB)
    assert third.size_bytes < first.size_bytes or third is first
    segments.free_segment(second.name)
    segments.free_segment(third.name)
    assert taken(segments, 4 * MIB).size_bytes == 4 * MIB
    assert segments.total_bytes == 4 * MIB


def test_trim_closes_segments_that_have_been_free_for_long() -> None:
    segments = SegmentPool(8 * MIB)
    first, second = taken(segments, MIB), taken(segments, MIB)
    segments.free_segment(first.name)
    segments.trim(idle_s=3600)
    assert segments.total_bytes == first.size_bytes + second.size_bytes
    segments.trim(idle_s=0)
    assert segments.total_bytes == second.size_bytes


def test_one_users_segments_can_be_discarded_alone() -> None:
    segments, one, other = SegmentPool(8 * MIB), object(), object()
    segments.acquire_segment(MIB, one)
    kept = segments.acquire_segment(MIB, other)
    segments.discard_segments_of(one)
    assert kept is not None
    assert segments.used_count == 1
    segments.free_segment(kept.name)
    assert segments.acquire_segment(MIB) is kept
    segments.discard_segments_of(None)
    assert (segments.used_count, segments.total_bytes) == (0, 0)


def test_a_granted_segment_is_used_again_by_whom_it_is_granted_to() -> None:
    segments, user = SegmentPool(8 * MIB), object()
    granted = segments.grant_segment(MIB, user)
    assert granted is not None
    assert granted.size_bytes > MIB
    view = granted.view
    assert view[-1] == IN_USE
    segments.free_segment(granted.name)
    assert view[-1] == FREE
    assert segments.used_count == 0
    assert taken(segments, MIB) is not granted
    segments.discard_granted(granted.name, object())
    assert view[-1] == FREE, "it belongs to another user"
    segments.discard_granted(granted.name, user)
    assert view[-1] == DISCARDED
    segments.free_segment(granted.name)
    assert view[-1] == DISCARDED
    segments.discard_segments_of(None)
    assert segments.total_bytes == 0


def test_granted_segments_are_discarded_with_their_user() -> None:
    segments, user = SegmentPool(8 * MIB, writable=True), object()
    granted = segments.grant_segment(MIB, user)
    assert granted is not None
    granted.view[-1] = FREE
    segments.discard_segments_of(user)
    assert segments.total_bytes == 0
    # The last byte of one that was used before says nothing.
    segments.free_segment(taken(segments, granted.size_bytes).name)
    (free,) = segments._free
    free.view[-1] = FREE
    again = segments.grant_segment(MIB, user)
    assert again is free
    assert again.view[-1] == IN_USE
    segments.discard_segments_of(user)


def test_a_dropped_lease_discards_its_segment() -> None:
    segments = SegmentPool(8 * MIB)
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
    assert segments.used_count == 1, "a freed lease must not affect its segment's next use"


def test_memory_is_shared_within_a_domain_only() -> None:
    domain = shm_namespace(MIB)
    assert domain
    assert shm_namespace(0) == ""
    program = (
        "from nereid.shm.segments import shm_namespace; import os;"
        "print(shm_namespace(1)); os.setuid(65534); print(shm_namespace(1))"
    )
    if os.getuid() == 0:
        output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
        mine, other_users = output.stdout.decode().split()
        assert mine == domain
        assert other_users != domain


def test_a_segments_name_contains_its_owner() -> None:
    assert segment_owner(Segment(MIB).name) == str(os.getpid())
