"""The token bucket and the count of pending requests, at given times."""

from __future__ import annotations

import pytest

from nereid_gateway.core.access.grant import Limits
from nereid_gateway.core.access.usage import Usage

TEN = Limits(requests_per_second=10.0, burst=3.0)


def test_a_burst_then_the_rate() -> None:
    usage = Usage()
    assert [usage.wait_s(TEN, 100.0) for _ in range(3)] == [0.0] * 3
    assert usage.wait_s(TEN, 100.0) == pytest.approx(0.1)
    # Asking again costs nothing.
    assert usage.wait_s(TEN, 100.05) == pytest.approx(0.05)
    assert usage.wait_s(TEN, 100.1) == 0.0
    assert usage.wait_s(TEN, 100.1) == pytest.approx(0.1)


def test_waiting_for_the_given_time_is_enough() -> None:
    limits = Limits(requests_per_second=3.0, burst=1.0)
    usage = Usage()
    now = 1e6
    for _ in range(1000):
        wait_s = usage.wait_s(limits, now)
        if wait_s:
            now += wait_s
            assert usage.wait_s(limits, now) == 0.0
    assert now == pytest.approx(1e6 + 999 / 3 / 2, rel=1e-3)


def test_over_a_long_time_the_rate_holds() -> None:
    usage = Usage()
    accepted = sum(usage.wait_s(TEN, 50.0 + step / 1000) == 0.0 for step in range(10_000))
    assert accepted == 102  # the burst, and the rate for the rest of ten seconds


def test_the_bucket_never_holds_more_than_the_burst() -> None:
    usage = Usage()
    usage.wait_s(TEN, 1.0)
    assert [usage.wait_s(TEN, 1e9) for _ in range(4)][:3] == [0.0] * 3
    assert usage.wait_s(TEN, 1e9) > 0


def test_no_rate_is_no_limit() -> None:
    usage = Usage()
    assert all(usage.wait_s(Limits(), 1.0) == 0.0 for _ in range(1000))


def test_what_is_given_back_can_be_taken_again() -> None:
    usage = Usage()
    for _ in range(10):
        assert usage.wait_s(TEN, 1.0) == 0.0
        usage.give_back()
    assert usage.is_idle(TEN, 1.0)


def test_concurrency() -> None:
    usage = Usage()
    two = Limits(concurrency=2)
    assert not usage.is_full(two)
    usage.in_flight += 2
    assert usage.is_full(two)
    assert not usage.is_full(Limits())
    usage.release()
    assert not usage.is_full(two)


def test_idle_is_as_new() -> None:
    usage = Usage()
    assert usage.is_idle(TEN, 0.0)
    usage.wait_s(TEN, 1.0)
    assert not usage.is_idle(TEN, 1.0)
    assert usage.is_idle(TEN, 1.2)
    usage.in_flight += 1
    assert not usage.is_idle(TEN, 9.0)
