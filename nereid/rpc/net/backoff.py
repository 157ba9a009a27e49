"""Exponential back-off with jitter: the delays between attempts.

Pure except for the random number generator it is given.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BackoffOptions:
    """First delay, its growth per failure, and its limit.

    jitter: share of a delay by which it may be shorter.
    """

    first_s: float = 0.05
    factor: float = 1.6
    largest_s: float = 2.0
    jitter: float = 0.2


class Backoff:
    """Delays between attempts; a success starts them anew."""

    def __init__(self, options: BackoffOptions, source: random.Random | None = None) -> None:
        self._options = options
        self._uniform = random.uniform if source is None else source.uniform
        self._failures = 0

    def succeeded(self) -> None:
        """Start again with the first delay."""
        self._failures = 0

    def next_delay_s(self, lasted_s: float = 0.0) -> float:
        """Return the delay after a failure.

        lasted_s: the time for which the result of the attempt has lasted; if it is longer than the
            longest delay, the attempt counts as a success.
        """
        options = self._options
        if lasted_s > options.largest_s:
            self._failures = 0
        # The exponent is bounded: beyond a few dozen failures the power overflows, and the limit
        # has long been reached.
        grown = options.first_s * options.factor ** min(self._failures, 32)
        self._failures += 1
        return min(grown, options.largest_s) * self._uniform(1 - options.jitter, 1)
