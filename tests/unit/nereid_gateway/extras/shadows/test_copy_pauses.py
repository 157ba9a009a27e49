"""Pauses of a shadow in virtual time."""

from __future__ import annotations

import pytest

from nereid_gateway.extras.shadows.copy_pauses import BUSY, PAUSED, CopyPauses


def lasted(pauses: CopyPauses, now_s: float) -> float:
    """Return how long no copy is sent from now on, to a thousandth of it."""
    low, high = 0.0, 100.0
    while high - low > high / 1000:
        middle = (low + high) / 2
        low, high = (middle, high) if pauses.reason(now_s + middle) else (low, middle)
    return high


def test_copies_are_sent_until_something_is_wrong() -> None:
    assert CopyPauses().reason(0.0) == ""


def test_a_busy_shadow_has_short_pauses_until_it_responds() -> None:
    pauses = CopyPauses()
    seen = []
    for now_s in range(10):
        pauses.on_busy(float(now_s))
        assert pauses.reason(float(now_s)) == BUSY
        seen.append(lasted(pauses, float(now_s)))
    for number, pause_s in enumerate(seen):
        full_s = min(0.001 * 2**number, 0.128)
        assert 0.79 * full_s <= pause_s <= 1.01 * full_s
    pauses.on_responded()
    pauses.on_busy(20.0)
    assert lasted(pauses, 20.0) <= 0.00101


def test_a_shadow_that_fails_has_long_pauses_even_if_it_responds_between() -> None:
    pauses = CopyPauses()
    now_s, starts = 100.0, 0
    while now_s < 100.0 + 3600:
        pauses.on_failed(now_s)
        starts += 1
        pause_s = lasted(pauses, now_s)
        full_s = min(2.0 ** (starts - 1), 60.0)
        assert 0.79 * full_s <= pause_s <= 1.01 * full_s
        assert pauses.reason(now_s) == PAUSED
        now_s += pause_s + 0.1
        assert pauses.reason(now_s) == ""
        pauses.on_responded()
    # A worker that crashed at each copy would start thousands of times an hour.
    assert starts < 80


def test_copies_in_flight_together_fail_once() -> None:
    pauses, other = CopyPauses(), CopyPauses()
    for now_s in (5.0, 5.0, 5.1, 5.7):
        pauses.on_failed(now_s)
    assert lasted(pauses, 5.0) <= 1.01
    # That a shadow is busy meanwhile ends no pause, and is none of the next.
    pauses.on_busy(5.7)
    other.on_failed(5.0)
    assert pauses.reason(5.75) == PAUSED == other.reason(5.75)


@pytest.mark.parametrize(("good_s", "longest_s"), [(30.0, 2.02), (61.0, 1.01)])
def test_a_minute_without_a_failure_begins_anew(good_s: float, longest_s: float) -> None:
    pauses = CopyPauses()
    pauses.on_failed(10.0)
    now_s = 10.0 + lasted(pauses, 10.0) + good_s
    pauses.on_failed(now_s)
    assert longest_s * 0.78 <= lasted(pauses, now_s) <= longest_s
