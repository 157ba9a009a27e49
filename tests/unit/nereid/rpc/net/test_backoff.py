"""Delays between attempts."""

from __future__ import annotations

import random

from nereid.rpc.net.backoff import Backoff, BackoffOptions


def test_back_off_grows_to_its_limit_and_starts_anew() -> None:
    backoff = Backoff(BackoffOptions(first_s=1, factor=2, largest_s=5, jitter=0))
    assert [backoff.next_delay_s() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.succeeded()
    assert backoff.next_delay_s() == 1


def test_what_lasted_longer_than_the_longest_delay_counts_as_a_success() -> None:
    backoff = Backoff(BackoffOptions(first_s=1, factor=2, largest_s=5, jitter=0))
    assert [backoff.next_delay_s(lasted_s) for lasted_s in (0, 0, 5, 5.1, 0)] == [1, 2, 4, 1, 2]


def test_jitter_makes_delays_shorter() -> None:
    backoff = Backoff(BackoffOptions(first_s=1, factor=1, jitter=0.5), random.Random(1))
    delays = [backoff.next_delay_s() for _ in range(100)]
    assert 0.5 <= min(delays) < 0.6
    assert 0.9 < max(delays) <= 1
