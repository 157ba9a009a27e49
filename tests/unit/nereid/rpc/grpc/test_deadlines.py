"""Deadlines behind one timer."""

from __future__ import annotations

from nereid.rpc.grpc.deadlines import Deadlines


def test_deadlines_come_up_in_time_and_never_early() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.next_due() is None
    assert deadlines.add_deadline("b", 10.5)
    assert not deadlines.add_deadline("b2", 10.5)
    assert deadlines.add_deadline("a", 10.0)
    assert not deadlines.add_deadline("c", 11.0)
    due = deadlines.next_due()
    assert due is not None
    assert 10.0 < due <= 10.011
    assert deadlines.expire(10.0) == []
    assert deadlines.expire(10.02) == ["a"]
    deadlines.discard_deadline("b2", 10.5)
    deadlines.discard_deadline("unknown", 77.0)
    assert deadlines.expire(20.0) == ["b", "c"]
    assert deadlines.next_due() is None


def test_a_refilled_bucket_comes_up_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add_deadline("a", 10.0)
    deadlines.discard_deadline("a", 10.0)
    deadlines.add_deadline("b", 10.0)
    assert deadlines.expire(11) == ["b"]


def test_responded_calls_leave_nothing_behind() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(10_000):
        deadlines.add_deadline(number, 1000.0 + number)
        deadlines.discard_deadline(number, 1000.0 + number)
    assert len(deadlines._order) < 200
    assert not deadlines._buckets
