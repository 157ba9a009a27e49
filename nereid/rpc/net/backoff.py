"""Exponential back-off with jitter: how long to wait between attempts. Pure but for the random
number generator it is given.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BackoffOptions:
    """The first delay, its growth per failure, and its limit. jitter: the share of a delay by which
    it may be shorter.
    """

    first_s: float = 0.05
    factor: float = 1.6
    largest_s: float = 2.0
    jitter: float = 0.2


class Backoff:
    """Delays between attempts. `succeeded` starts anew."""

    def __init__(self, options: BackoffOptions, source: random.Random | None = None) -> None:
        self._options = options
        self._uniform = random.uniform if source is None else source.uniform
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0

    def next_delay_s(self, lasted_s: float = 0.0) -> float:
        """After a failure: how long to wait. lasted_s: how long what the attempt began has lasted;
        beyond the longest delay it counts as a success.
        """
        options = self._options
        if lasted_s > options.largest_s:
            self._failures = 0
        # Beyond a few dozen the power overflows, and the limit has long been reached.
        grown = options.first_s * options.factor ** min(self._failures, 32)
        self._failures += 1
        return min(grown, options.largest_s) * self._uniform(1 - options.jitter, 1)
