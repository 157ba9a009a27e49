"""Delays between attempts."""

from __future__ import annotations

import random

from nereid.rpc.net.backoff import Backoff, BackoffOptions


def test_back_off_grows_to_its_limit_and_starts_anew() -> None:
    options = BackoffOptions(first_s=1, factor=2, largest_s=5, jitter=0)
    backoff = Backoff(options)
    assert [backoff.next_delay_s() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.succeeded()
    assert backoff.next_delay_s() == 1
    shaky = Backoff(BackoffOptions(first_s=1, jitter=0.5), random.Random(1))
    assert 0.5 <= shaky.next_delay_s() <= 1.5
