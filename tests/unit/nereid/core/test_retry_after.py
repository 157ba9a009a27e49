"""When refused clients are to come back."""

from __future__ import annotations

import pytest

from nereid.core.retry_after import DEFAULT_MS, DrainEstimate, spread_ms, whole_seconds

_S = 1_000_000_000


def test_before_anything_was_measured_the_delay_is_the_default() -> None:
    drain = DrainEstimate()
    assert drain.retry_after_ms(100, 0, 5 * _S) == DEFAULT_MS
    # Too soon to measure.
    assert drain.retry_after_ms(100, 50, 5 * _S + 1000) == DEFAULT_MS


def test_the_delay_is_how_long_the_queue_takes_to_drain() -> None:
    drain = DrainEstimate()
    drain.retry_after_ms(100, 1000, 5 * _S)
    # 100 in half a second: 200 a second.
    assert drain.retry_after_ms(100, 1100, 5 * _S + _S // 2) == 500
    # The rate holds until the next window is over.
    assert drain.retry_after_ms(400, 1101, 5 * _S + _S // 2 + 1) == 2000
    assert drain.retry_after_ms(100, 1200, 5 * _S + _S) == 500


def test_time_without_refusals_is_not_measured() -> None:
    drain = DrainEstimate()
    drain.retry_after_ms(100, 0, 5 * _S)
    drain.retry_after_ms(100, 100, 5 * _S + _S // 2)
    # The queue may have been empty for most of these ten seconds.
    assert drain.retry_after_ms(100, 110, 15 * _S) == 500


@pytest.mark.parametrize(("pending", "expected"), [(1, 50), (10**9, 30_000)])
def test_the_delay_is_bounded(pending: int, expected: int) -> None:
    drain = DrainEstimate()
    drain.retry_after_ms(1, 0, 5 * _S)
    assert drain.retry_after_ms(pending, 1000, 6 * _S) == expected


def test_a_queue_that_does_not_move_has_the_default() -> None:
    drain = DrainEstimate()
    drain.retry_after_ms(1, 7, 5 * _S)
    assert drain.retry_after_ms(100, 7, 6 * _S) == DEFAULT_MS


def test_delays_are_spread_and_never_nothing() -> None:
    # Five binary digits of 500, 1000 and 1499.
    assert [spread_ms(1000, random) for random in (0.0, 0.5, 0.999)] == [496, 992, 1472]
    assert spread_ms(1, 0.0) == 1
    assert len({spread_ms(1000, number / 1000) for number in range(1000)}) > 20


def test_seconds_are_rounded_up() -> None:
    assert [whole_seconds(ms) for ms in (1, 1000, 1001, 2500)] == [1, 1, 2, 3]
