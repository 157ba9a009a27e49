"""Loads for the rehearsals: requests per second over time.

The module does no I/O, except for reading the file of a recorded rate.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

# Requests per second by the time in seconds.
Rate = Callable[[float], float]

# Length of the synthetic loads: a day in two hours.
DAY_S = 7200.0


def diurnal(time_s: float) -> float:
    """Return the rate of a day: quiet at its start and end, with a peak in the afternoon."""
    return 0.5 + 11.5 * math.sin(math.pi * time_s / DAY_S) ** 2


def bursty(time_s: float) -> float:
    """Return a steady rate that jumps to five times as much for 3 minutes of every 20."""
    return 10.0 if 300 <= time_s % 1200 < 480 else 2.0


def sparse(time_s: float) -> float:
    """Return a rate with traffic in 10 minutes of every 40, and none in between."""
    return 3.0 if 600 <= time_s % 2400 < 1200 else 0.0


def recorded(path: Path) -> tuple[Rate, float]:
    """Return a recorded rate, and the time at which the recording ends.

    The file is CSV with two columns: seconds, and requests per second from then on. For example, it
    may be an export of Prometheus' rate() of nv_inference_request_success.

    Raises:
        ValueError: a row has no two numbers, or the times do not ascend.
    """
    with path.open(newline="") as file:
        rows = [(float(time_s), float(rate)) for time_s, rate in csv.reader(file)]
    if len(rows) < 2 or any(one[0] >= two[0] for one, two in pairwise(rows)):
        raise ValueError("expected two rows or more, in ascending order of time")
    began_s = rows[0][0]

    def rate(time_s: float) -> float:
        return max((row for row in rows if row[0] - began_s <= time_s), default=(0.0, 0.0))[1]

    return rate, rows[-1][0] - began_s


def arrivals(rate: Rate, until_s: float, chance: random.Random) -> Iterator[float]:
    """Yield times of independent requests at this rate (Poisson process)."""
    time_s = 0.0
    while time_s < until_s:
        per_second = rate(time_s)
        if per_second <= 0:
            time_s += 1.0
            continue
        # The rate is taken as constant for a second at most.
        step_s = chance.expovariate(per_second)
        time_s += min(step_s, 1.0)
        if step_s <= 1.0 and time_s < until_s:
            yield time_s
