from __future__ import annotations

import pytest

from nereid.timeline.event_log import EventLog


def test_the_last_events_are_kept() -> None:
    log = EventLog(max_events=2)
    for number in range(3):
        log.record("load", f"m{number}", model=f"m{number}", cause="a client", principal="p")
    assert [event.subject for event in log.since(0)] == ["m1", "m2"]
    assert [logged.number for logged in log.last(9)] == [2, 3]
    (last,) = log.last(1)
    assert (last.model, last.cause, last.principal) == ("m2", "a client", "p")
    assert log.recorded == 3
    assert log.lost_until_ns
    assert log.last(0) == []


@pytest.mark.parametrize(
    ("kinds", "most", "numbers"),
    [
        ("pollllll", 4, [1, 6, 7, 8]),
        ("ppppll", 4, [3, 4, 5, 6]),
        ("lppppp", 4, [1, 4, 5, 6]),
        ("ppppp", 2, [4, 5]),
        ("lllll", 2, [4, 5]),
        ("plp", 1, [3]),
        ("pp", 9, [1, 2]),
    ],
)
def test_many_loads_hide_no_problem(kinds: str, most: int, numbers: list[int]) -> None:
    log = EventLog()
    for kind in kinds:
        log.record("load failed" if kind == "p" else "load", "m")
    assert [logged.number for logged in log.last(most)] == numbers


def test_long_texts_are_cut() -> None:
    log = EventLog()
    log.record("load failed", "s" * 10_000, "d" * 10_000, model="m" * 10_000)
    (logged,) = log.last(1)
    assert len(logged.event.subject) == len(logged.model) == 300
    assert len(logged.event.detail) == 1000


def test_an_event_may_have_a_duration() -> None:
    log = EventLog()
    log.record("load", "m", from_ns=5)
    log.record("executor lost", "e", "on a host")
    load, lost = log.since(0)
    assert load.from_ns == 5 < load.to_ns
    assert lost.from_ns
    assert not lost.to_ns
