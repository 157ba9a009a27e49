"""Exponential back-off with jitter, for the delays between attempts."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BackoffOptions:
    """Options of a back-off; `jitter` is the maximum share (0 to 1) cut from a delay at random."""

    first_s: float = 0.05
    factor: float = 1.6
    largest_s: float = 2.0
    jitter: float = 0.2


class Backoff:
    """Delays between attempts. After a success they begin with the first delay again."""

    def __init__(self, options: BackoffOptions, source: random.Random | None = None) -> None:
        self._options = options
        self._uniform = random.uniform if source is None else source.uniform
        self._failures = 0

    def succeeded(self) -> None:
        """Record a success: the next delay is the first one."""
        self._failures = 0

    def next_delay_s(self, lasted_s: float = 0.0) -> float:
        """Return the seconds to wait after a failure.

        If the attempt's result lasted longer than the maximum delay, such as the life of a process,
        the attempt counts as a success.
        """
        options = self._options
        if lasted_s > options.largest_s:
            self._failures = 0
        # Without a limit on the exponent, the power overflows after a few dozen failures.
        grown = options.first_s * options.factor ** min(self._failures, 32)
        self._failures += 1
        return min(grown, options.largest_s) * self._uniform(1 - options.jitter, 1)
