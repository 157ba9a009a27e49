"""Rings: what they keep, and what has to make way."""

from __future__ import annotations

import random
import threading

from nereid.timeline.ring import MemberRing, Ring


def test_the_newest_are_kept() -> None:
    it = Ring(tuple, 4)
    for ended_ns in range(10):
        it.append((ended_ns, "x"))
    assert it.since(0) == [(each, "x") for each in (6, 7, 8, 9)]
    # The oldest that is there may be one of several that ended then.
    assert it.lost_until_ns == 6


def test_what_ended_earlier_is_left_out() -> None:
    it = Ring(tuple, 100)
    for ended_ns in range(0, 100, 10):
        it.append((ended_ns,))
    assert it.since(75) == [(80,), (90,)]
    assert it.since(91) == []
    assert it.lost_until_ns == 0


def test_members_count() -> None:
    it = MemberRing(tuple, 2, 10)
    for ended_ns in (1, 2, 3, 4):
        it.append_many((ended_ns, (0, 0) * 3))
    # Four with three members each are twelve.
    assert [ended_ns for ended_ns, _ in it.since(0)] == [2, 3, 4]
    assert it.lost_until_ns == 1
    it.append_many((5, (0, 0) * 20))
    assert it.since(0) == []
    assert it.lost_until_ns == 5
    it.append((6, (0, 0)))
    assert [ended_ns for ended_ns, _ in it.since(0)] == [6]


def test_members_of_what_made_way_count_no_more() -> None:
    it = MemberRing(tuple, 2, 10)
    chosen = random.Random(7)
    for ended_ns in range(1, 1000):
        size = chosen.randrange(1, 9)
        if size > 1 or len(it.added) == 10:
            it.append_many((ended_ns, (0, 0) * size))
        else:
            it.append((ended_ns, (0, 0)))
        kept = it.since(0)
        several = sum(len(values) // 2 for _, values in kept if len(values) > 2)
        assert several <= 10
        assert len(kept) <= 10
        # No more made way than had to.
        assert it.lost_until_ns == kept[0][0] - 1


def test_threads_append_while_another_looks() -> None:
    it = Ring(tuple, 1000)

    def append() -> None:
        for ended_ns in range(20_000):
            it.append((ended_ns,))

    threads = [threading.Thread(target=append) for _ in range(2)]
    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads):
        assert len(it.since(0)) <= 1000
    assert len(it.added) == 1000
