"""Decides whether a free instance waits for the next requests of its last batch's clients.

Without a wait, clients form two groups whose requests execute by turns, in batches of half the
size. The instance waits only if one batch of both groups takes less time than two, and only until
the requests of both groups are queued or should have come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_scheduler.batching.policies.fair_shares import can_share
from nereid_scheduler.batching.policies.queue_policies import forms_ahead

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.times.batch_times import BatchTimes
    from nereid_scheduler.core.requests.entry import Entry

# Shorter batches need not be reported: the wait would take about as long as a batch.
MIN_NS: Final = 1_000_000
# An instance waits only after this many batches in a row of the same shape.
_FEWEST: Final = 8
# A request is *prompt* if it comes within this fraction of the execution time after a batch ends.
_PROMPT_FRACTION: Final = 0.25
# Minimum share of prompt requests for a wait.
_MIN_PROMPT: Final = 0.75
_WEIGHT: Final = 0.125
# Maximum wait, as a multiple of the usual time until the last prompt request has come.
_PATIENCE: Final = 2
# Minimum saving of one batch over two, as a fraction of their time.
_SAVING: Final = 0.05
# After n vain waits in a row, the next 2**n batches leave at once. This is the maximum of n.
_MAX_MISSES: Final = 8


def can_gather(config: ModelConfig) -> bool:
    """Return whether the configuration lets an instance wait for its last batch's clients."""
    sequences = config.sequences
    batching = config.batching if sequences is None else sequences.oldest
    return (
        batching is not None
        and forms_ahead(batching)
        and can_share(batching, config.max_batch_size)
        and not config.decoupled
        and not (sequences is not None and sequences.iterative)
    )


class Gathering:
    """Decide whether one instance waits before it gets its next batch."""

    __slots__ = (
        "_alike",
        "_awaited",
        "_earlier_ns",
        "_execution_ns",
        "_key",
        "_last_ns",
        "_misses",
        "_prompt_share",
        "_return_ns",
        "_skipped",
        "_times",
        "expected",
        "until_ns",
    )

    def __init__(self, times: BatchTimes) -> None:
        self._times = times
        # `expected`: number of requests that the next batch should have; 0 means that the batch
        # takes the queued requests. `until_ns`: time until which the instance waits for requests.
        self.expected = 0
        self.until_ns = 0
        # Shape of the requests in the last batch, and how many batches in a row had that shape.
        self._key: Hashable = None
        self._alike = 0
        self._last_ns = self._earlier_ns = 0
        # Moving averages. `_return_ns`: time from a batch's end until the last prompt request.
        self._execution_ns = 0.0
        self._prompt_share = 0.0
        self._return_ns = 0.0
        # Number of requests that must be queued to end the wait; 0 if the instance does not wait.
        self._awaited = 0
        # Vain waits in a row, and number of the next batches that leave without a wait.
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
        """Record that the instance has executed its only batch.

        key: shape of all requests; `None` if their costs cannot be compared. taken_ns: time since
        the batch was sent. pending: number of queued requests. most: maximum batch, in requests.
        """
        self._earlier_ns, self._last_ns = self._last_ns, now_ns
        self.expected = self._awaited = 0
        if key is None or key != self._key:
            self._key, self._alike = key, 0
            return
        self._alike += 1
        self._execution_ns += max(_WEIGHT, 1 / self._alike) * (taken_ns - self._execution_ns)
        if self._skipped:
            self._skipped -= 1
        elif self._alike >= _FEWEST and self._prompt_share >= _MIN_PROMPT:
            self.expected = min(pending + requests, most)
            wait_ns = min(self._execution_ns * _PROMPT_FRACTION, self._return_ns * _PATIENCE)
            self.until_ns = now_ns + int(wait_ns)

    def should_wait(self, pending: int, now_ns: int) -> bool:
        """Return whether the free instance should wait until more requests are queued."""
        expected = self.expected
        if not expected or pending >= expected:
            return False
        if now_ns < self.until_ns and self._pays(pending, expected):
            self._awaited = expected
            return True
        self.expected = 0
        return False

    def batch_dispatched(self, entries: Sequence[Entry]) -> None:
        """Record that the instance was sent a batch of these entries."""
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
        """Return whether one batch of all requests takes less time than two batches.

        The first of the two batches would have the queued requests, and the second the awaited
        requests. pending: number of queued requests. expected: number of queued requests and
        awaited requests together.
        """
        costs = self._times.of_shape(self._key)
        if costs is None or costs.is_due(expected.bit_length() - 1):
            return True
        apart_ns = costs.taken_ns(pending) + costs.taken_ns(expected - pending)
        return costs.taken_ns(expected) + self._return_ns < apart_ns * (1 - _SAVING)
