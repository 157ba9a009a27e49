"""Decision whether a free instance waits for the clients of its last batch.

Clients that wait for their responses send their next requests right after a batch. Requests that
were queued meanwhile have left without them by then, so two groups of clients form that take turns,
in batches of half the size that the clients could fill. So where requests have mostly come right
after a batch, and one batch of all takes less time than two of the groups, an instance waits until
as many requests are queued, or until they would have come. Requests that come at any time are not
waited for.

Pure: times are arguments. Knows no queue: its batcher reports the number of queued requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_scheduler.batching.forming_rules import can_share, forms_ahead
from nereid_scheduler.batching.service_times import step_of
from nereid_scheduler.batching.size_cost import SizeCost

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from nereid.model_config import ModelConfig
    from nereid_scheduler.core.requests.entry import Entry

# Shorter batches need not be reported: a wait would take about as long as they do.
MIN_NS: Final = 1_000_000
# An instance waits only after this many batches in a row of one shape.
_FEWEST: Final = 8
# Requests are prompt if they come within this fraction of an execution after a batch.
_PROMPT_FRACTION: Final = 0.25
# The share of requests that has to be prompt before an instance waits.
_MIN_PROMPT: Final = 0.75
# The weight of the newest measurement in a moving average.
_WEIGHT: Final = 0.125
# A wait may last this many times what prompt requests usually take to come.
_PATIENCE: Final = 2
# Time that one batch has to save, as a fraction of what two batches take.
_SAVING: Final = 0.05
# After the nth wait in a row without success there is none for 2**n batches; n has this bound.
_MAX_MISSES: Final = 8


def can_gather(config: ModelConfig) -> bool:
    """Return whether an instance may wait for the clients of its last batch.

    It may where the configuration does not say how long requests may queue, and where the clients
    have their responses when a batch ends.
    """
    sequences = config.sequences
    batching = config.batching if sequences is None else sequences.oldest
    return (
        batching is not None
        and forms_ahead(batching)
        and can_share(batching, config.max_batch_size)
        and not config.decoupled
        and not (sequences is not None and sequences.iterative)
    )


class _Costs:
    """Costs of requests of one shape, by the size of their batch."""

    __slots__ = ("_batches", "_by_size")

    def __init__(self) -> None:
        self._batches = 0
        self._by_size: dict[int, SizeCost] = {}

    def record(self, requests: int, cost_ns: float) -> None:
        self._batches += 1
        size = step_of(requests)
        cost = self._by_size.get(size)
        if cost is None:
            cost = self._by_size[size] = SizeCost()
        cost.record(cost_ns, self._batches)

    def is_due(self, requests: int) -> bool:
        """Return whether batches of this size should be tried."""
        cost = self._by_size.get(step_of(requests))
        return cost is None or cost.is_due(self._batches)

    def taken_ns(self, requests: int) -> float:
        """Return what a batch takes, by those of the nearest size; 0 if there were none."""
        nearest = min(self._by_size, key=lambda size: abs(size - requests), default=0)
        return requests * self._by_size[nearest].cost_ns if nearest else 0.0


class Gathering:
    """Decide whether one instance waits before its next batch."""

    __slots__ = (
        "_alike",
        "_awaited",
        "_costs",
        "_earlier_ns",
        "_execution_ns",
        "_key",
        "_last_ns",
        "_misses",
        "_prompt_share",
        "_return_ns",
        "_skipped",
        "expected",
        "until_ns",
    )

    def __init__(self) -> None:
        # How many requests the next batch should have, and until when the instance waits for them.
        # 0 means that it takes what is queued.
        self.expected = 0
        self.until_ns = 0
        self._costs = _Costs()
        # Shape of the last batches' requests, and how many batches in a row had it.
        self._key: Hashable = None
        self._alike = 0
        # Ends of the last batch and of the one before it.
        self._last_ns = self._earlier_ns = 0
        # Moving averages: a batch's execution time, the share of prompt requests, and the time from
        # the end of a batch until the last prompt request comes.
        self._execution_ns = 0.0
        self._prompt_share = 0.0
        self._return_ns = 0.0
        # How many requests the instance waits for; 0 if it does not wait.
        self._awaited = 0
        # Waits in a row without success, and how many of the next batches leave without a wait.
        self._misses = self._skipped = 0

    def batch_ended(  # noqa: PLR0913, PLR0917 - one fact each
        self,
        key: Hashable,
        requests: int,
        taken_ns: int,
        pending: int,
        most: int,
        now_ns: int,
    ) -> None:
        """Record that an instance has executed a batch and has no other.

        key: the shape of its requests; `None` means that they cannot be compared. taken_ns: since
        the batch was sent. pending: how many requests are queued. most: how many a batch may have.
        """
        self._earlier_ns, self._last_ns = self._last_ns, now_ns
        self.expected = self._awaited = 0
        if key is None or key != self._key:
            self._key, self._alike, self._costs = key, 0, _Costs()
            return
        self._alike += 1
        self._costs.record(requests, taken_ns / requests)
        self._execution_ns += max(_WEIGHT, 1 / self._alike) * (taken_ns - self._execution_ns)
        if self._skipped:
            self._skipped -= 1
        elif self._alike >= _FEWEST and self._prompt_share >= _MIN_PROMPT:
            self.expected = min(pending + requests, most)
            wait_ns = min(self._execution_ns * _PROMPT_FRACTION, self._return_ns * _PATIENCE)
            self.until_ns = now_ns + int(wait_ns)

    def should_wait(self, pending: int, now_ns: int) -> bool:
        """Return whether the free instance should wait for more requests than are queued."""
        expected = self.expected
        if not expected or pending >= expected:
            return False
        if now_ns < self.until_ns and self._pays(pending, expected):
            self._awaited = expected
            return True
        self.expected = 0
        return False

    def batch_dispatched(self, entries: Sequence[Entry]) -> None:
        """Record that an instance was sent a batch of these entries."""
        if not self._last_ns:
            return
        self.expected = 0
        if self._awaited:
            if len(entries) >= self._awaited:
                self._misses = 0
            else:
                self._misses = min(self._misses + 1, _MAX_MISSES)
                self._skipped = 1 << self._misses
            self._awaited = 0
        last_ns, earlier_ns = self._last_ns, self._earlier_ns
        limit_ns = self._execution_ns * _PROMPT_FRACTION
        prompt = longest_ns = 0
        for entry in entries:
            came_ns = entry.enqueued_ns
            after_ns = came_ns - (last_ns if came_ns >= last_ns else earlier_ns)
            if 0 <= after_ns <= limit_ns:
                prompt += 1
                longest_ns = max(longest_ns, after_ns)
        self._prompt_share += _WEIGHT * (prompt / len(entries) - self._prompt_share)
        if prompt:
            self._return_ns += _WEIGHT * (longest_ns - self._return_ns)

    def _pays(self, pending: int, expected: int) -> bool:
        """Return whether one batch of all takes less time than these now and the others later."""
        costs = self._costs
        if costs.is_due(expected):
            return True
        apart_ns = costs.taken_ns(pending) + costs.taken_ns(expected - pending)
        return costs.taken_ns(expected) + self._return_ns < apart_ns * (1 - _SAVING)
