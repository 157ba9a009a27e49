"""Rings: what they keep, and what has to make way."""

from __future__ import annotations

import threading

from nereid.timeline.ring import Ring


def ring(max_records: int = 4, *, members_at: int = -1) -> Ring:
    return Ring(tuple, max_records, members_at=members_at)


def test_the_newest_are_kept() -> None:
    it = ring(4)
    for ended_ns in range(10):
        it.add((ended_ns, "x"))
    assert it.since(0) == [(each, "x") for each in (6, 7, 8, 9)]
    assert it.lost_until_ns == 5


def test_what_ended_earlier_is_left_out() -> None:
    it = ring(100)
    for ended_ns in range(0, 100, 10):
        it.add((ended_ns,))
    assert it.since(75) == [(80,), (90,)]
    assert it.since(91) == []
    assert it.lost_until_ns == 0


def test_members_count() -> None:
    it = ring(10, members_at=1)
    for ended_ns in (1, 2, 3):
        it.add((ended_ns, ["a", "b", "c"]), 3)
    # Three with three members each are twelve.
    assert [ended_ns for ended_ns, _ in it.since(0)] == [2, 3]
    it.add((4, ["a"] * 20), 20)
    assert it.since(0) == []
    assert it.lost_until_ns == 4
    it.add((5, ["a"]), 1)
    assert [ended_ns for ended_ns, _ in it.since(0)] == [5]


def test_threads_add_while_another_looks() -> None:
    it = ring(1000)

    def add() -> None:
        for ended_ns in range(20_000):
            it.add((ended_ns,))

    threads = [threading.Thread(target=add) for _ in range(2)]
    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads):
        assert len(it.since(0)) <= 1002
    assert len(it.since(0)) == 1000
