"""The sizes and delays of batches that hold a latency target, as a function of measured times."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_scheduler.batching.times.row_times import RowTimes

# A larger size is preferred only if its rate is higher by at least this fraction.
_WORTH: Final = 0.02
# Assumed rate of a burst, as a multiple of the rate that can be served without refusals.
_BURST: Final = 1.5
# Batches wait for at most this multiple of the time in which one is filled.
_FILL: Final = 2


class Plan(NamedTuple):
    """Current decision about batches.

    size: rows. delay_ns: how long a batch waits for more requests while an instance is free.
    execution_ns: time in which nearly all batches of this size finish; 0 before measurements.
    """

    size: int
    delay_ns: int
    execution_ns: int


def best_plan(  # noqa: PLR0913, PLR0917 (one fact each)
    times: RowTimes,
    steps: Sequence[int],
    instances: int,
    held_ns: float,
    offered: float,
    delay_part: float,
) -> Plan:
    """Return the plan that serves most within the time that a request may take.

    steps: sizes to choose from. held_ns: how long a request may take. offered: rows that come per
    nanosecond. delay_part: how long batches wait, as a fraction of the maximum.
    """
    # Sizes grow by doubling: at most twice the largest measured one.
    means = [(size, times.mean_ns(size)) for size in steps if size <= 2 * times.largest]
    # Sizes with which each request is in time, whenever it comes.
    calm = [
        (instances * size / mean_ns, size)
        for size, mean_ns in means
        if mean_ns * times.spread * (1 + 1 / instances) <= held_ns
    ]
    rate, size = _smallest_of_best(calm)
    measured = offered
    if calm:
        # Assume at least this load. Under less load, batches stay below the maximum anyway.
        offered = max(offered, _BURST * rate)
    # With larger sizes, requests are in time only in a part of the time between executions.
    tight = []
    for candidate, mean_ns in means:
        part = (held_ns - mean_ns * times.spread) * instances / mean_ns
        if part > 0:
            tight.append(
                (min(offered * min(part, 1.0), instances * candidate / mean_ns), candidate)
            )
    tight_rate, tight_size = _smallest_of_best(tight)
    if tight_rate > rate * (1 + _WORTH):
        size = tight_size
    if not calm:
        size = max(size, _size_for_bursts(means, times.spread, held_ns, offered))
    execution_ns = times.mean_ns(size) * times.spread
    delay_ns = 0.0
    # With one instance, batches wait only if the target is too short for every size.
    if instances > 1 or not calm:
        delay_ns = delay_part * max(0.0, held_ns - execution_ns)
        if measured:
            # Clients that wait for their responses may be fewer than a batch has rows.
            delay_ns = min(delay_ns, _FILL * size / measured)
    return Plan(size, int(delay_ns), int(execution_ns))


def _size_for_bursts(
    means: Sequence[tuple[int, float]], spread: float, held_ns: float, offered: float
) -> int:
    """Return the size that holds a random burst in the time left after such a batch."""
    largest = means[0][0]
    for size, mean_ns in means:
        left_ns = held_ns - mean_ns * spread
        if left_ns <= 0:
            break
        largest = size
        if size > offered * left_ns + 2 * sqrt(offered * left_ns):
            break
    return largest


def _smallest_of_best(rates: list[tuple[float, int]]) -> tuple[float, int]:
    """Return the pair of rate and size with nearly the highest rate and the smallest size."""
    if not rates:
        return 0.0, 0
    enough = max(rates)[0] * (1 - _WORTH)
    return next(pair for pair in rates if pair[0] >= enough)
