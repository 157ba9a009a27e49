"""Rings: what they keep, and what has to make way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from struct import iter_unpack
from typing import Any

import pytest
from librt.strings import write_i64_le

from nereid.timeline.ring import PackedRing, Ring


def test_the_newest_are_kept() -> None:
    it = Ring(tuple, 4)
    for ended_ns in range(10):
        it.append((ended_ns, "x"))
    assert list(it.since(0)) == [(each, "x") for each in (6, 7, 8, 9)]
    # The oldest that is there may be one of several that ended then.
    assert it.lost_until_ns == 6


def test_what_ended_earlier_is_left_out() -> None:
    it = Ring(tuple, 100)
    for ended_ns in range(0, 100, 10):
        it.append((ended_ns,))
    assert list(it.since(75)) == [(80,), (90,)]
    assert list(it.since(91)) == []
    assert it.lost_until_ns == 0


def read_numbers(data: bytes, objects: list[Any]) -> Iterator[tuple[int, tuple[int, str]]]:
    """When each ended, with that and its text."""
    for (ended_ns,), text in zip(iter_unpack("<q", data), objects, strict=True):
        yield ended_ns, (ended_ns, text)


def packed(kept_ns: int = 1000, max_bytes: int = 96) -> PackedRing:
    """Of numbers, four to a piece."""
    return PackedRing(read_numbers, kept_ns, max_bytes, piece_bytes=32)


def add(ring: PackedRing, *times: int) -> None:
    for ended_ns in times:
        write_i64_le(ring.piece, ended_ns)
        ring.objects.append(f"at {ended_ns}")
        ring.end(ended_ns)


def test_packed_records_are_read_from_pieces_and_from_what_is_written() -> None:
    it = packed()
    add(it, *range(1, 7))
    assert list(it.since(0)) == [(each, f"at {each}") for each in range(1, 7)]
    assert [ended_ns for ended_ns, _ in it.since(3)] == [3, 4, 5, 6]
    assert list(it.since(7)) == []
    assert it.lost_until_ns == 0


def test_packed_pieces_make_way_whole() -> None:
    it = packed()
    add(it, *range(1, 18))
    # Three whole pieces, and the one that is written.
    assert [ended_ns for ended_ns, _ in it.since(0)] == list(range(5, 18))
    assert it.lost_until_ns == 4


def test_old_packed_pieces_make_way_before_the_ring_is_full() -> None:
    it = packed(kept_ns=10)
    add(it, 1, 2, 3, 4, 11, 12, 13, 14, 15)
    assert next(ended_ns for ended_ns, _ in it.since(0)) == 1
    add(it, 16, 17, 18)
    assert [ended_ns for ended_ns, _ in it.since(0)] == [11, 12, 13, 14, 15, 16, 17, 18]
    assert it.lost_until_ns == 4


def test_packed_records_that_were_read_do_not_change() -> None:
    it = packed()
    add(it, 1, 2)
    found = it.since(0)
    add(it, *range(3, 40))
    assert [ended_ns for ended_ns, _ in found] == [1, 2]


def test_half_a_packed_record_is_not_read() -> None:
    it = packed()
    add(it, 1)
    write_i64_le(it.piece, 2)
    assert list(it.since(0)) == [(1, "at 1")]


def test_a_packed_record_that_is_dropped() -> None:
    it = packed()
    add(it, 1)
    write_i64_le(it.piece, 2)
    with pytest.raises(ValueError, match="too large"):
        write_i64_le(it.piece, 1 << 63)
    it.drop()
    add(it, 3)
    assert list(it.since(0)) == [(1, "at 1"), (3, "at 3")]


def test_packed_records_of_a_thread_while_another_looks() -> None:
    it = PackedRing(
        lambda data, _: ((first, (first, second)) for first, second in iter_unpack("<2q", data)),
        kept_ns=1 << 62,
        max_bytes=1 << 12,
        piece_bytes=1 << 8,
    )

    def append() -> None:
        for number in range(1, 20_000):
            write_i64_le(it.piece, number)
            write_i64_le(it.piece, -number)
            it.end(number)

    thread = threading.Thread(target=append)
    thread.start()
    looks = 0
    while thread.is_alive() or not looks:
        found = list(it.since(0))
        numbers = [first for first, _ in found]
        assert found == [(each, -each) for each in numbers]
        # None is missing between the first and the last.
        assert not numbers or numbers == list(range(numbers[0], numbers[-1] + 1))
        looks += 1
    thread.join()
    assert it.last_ended_ns == 19_999


def test_threads_append_while_another_looks() -> None:
    it = Ring(tuple, 1000)

    def append() -> None:
        for ended_ns in range(20_000):
            it.append((ended_ns,))

    threads = [threading.Thread(target=append) for _ in range(2)]
    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads):
        assert len(list(it.since(0))) <= 1000
    assert len(list(it.since(0))) == 1000
