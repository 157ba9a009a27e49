"""Batcher of padded models with max_batch_tokens: a batch has requests of similar lengths.

The requests of a batch are chosen when it leaves, so no batch is formed ahead of time. The oldest
request of the most urgent level is in each batch, so a request waits for at most as many batches as
there are requests before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_scheduler.batching.dynamic_batcher import DynamicBatcher
from nereid_scheduler.batching.policies.token_budget import Extent, TokenLimits, choose
from nereid_scheduler.core.requests.entry import Batch, executing_batch

if TYPE_CHECKING:
    from nereid.model_config import DynamicBatching
    from nereid.model_config.padding import PaddedSize
    from nereid_scheduler.batching.policies.sizing import Sizing
    from nereid_scheduler.batching.times.batch_times import BatchTimes
    from nereid_scheduler.core.requests.entry import Entry

# A batch is chosen from this many times as many requests as it may have rows, but from at most
# _MAX_WINDOW if it may have fewer rows: looking at a request costs about a microsecond.
_WINDOW: Final = 4
_MAX_WINDOW: Final = 256
# With these reasons, requests that come later may still join.
_OPEN: Final = frozenset({"", "length", "shape"})


class _ChosenBatch:
    """Entries that would leave now. reason: why no other joins; empty if later ones still could."""

    __slots__ = ("entries", "extent", "reason")

    def __init__(self, entries: list[Entry], extent: Extent, reason: str) -> None:
        self.entries = entries
        self.extent = extent
        self.reason = reason


class TokenBatcher(DynamicBatcher):
    """Batcher for requests of different lengths."""

    def __init__(  # noqa: PLR0913, PLR0917 - one fact each
        self,
        model_name: str,
        batching: DynamicBatching,
        max_batch_size: int,
        padded_size: PaddedSize,
        sizing: Sizing,
        times: BatchTimes,
        max_pending: int = 0,
    ) -> None:
        super().__init__(model_name, batching, sizing, None, max_pending)
        self._max_tokens = batching.max_batch_tokens
        self._window = max(max_batch_size, min(_WINDOW * max_batch_size, _MAX_WINDOW))
        self._padded_size = padded_size
        self._times = times

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:  # noqa: ARG002 (a Batcher)
        """Return a batch for an instance, or `None` if the instance has to wait."""
        chosen = self._choose()
        if chosen is None:
            return None
        reason = chosen.reason
        if not reason:
            reason = "immediate"
            if self._sizing.delay_ns:
                if now_ns < self._closes_ns(chosen):
                    return None
                reason = "delay"
        entries, extent = chosen.entries, chosen.extent
        self._queues.extract_all(entries)
        self.pending -= len(entries)
        batch = executing_batch(entries, extent.rows, reason)
        batch.tokens = extent.rows * extent.length
        return batch

    def has_grown(self, now_ns: int, instances: int) -> bool:  # noqa: ARG002 (a Batcher)
        """Return whether the next batch is complete, so that no request could join it later."""
        chosen = self._choose()
        return chosen is not None and chosen.reason not in _OPEN

    def form_batches(self, now_ns: int, instances: int) -> None:
        """Do nothing, as the requests of a batch are chosen when it leaves."""

    def closes_ns(self, now_ns: int) -> int | None:
        """Return when the queue delay of the next batch ends; `None` if none is in progress."""
        if not self._sizing.delay_ns:
            return None
        chosen = self._choose()
        if chosen is None or chosen.reason:
            return None
        closes_ns = self._closes_ns(chosen)
        return closes_ns if closes_ns > now_ns else None

    def _closes_ns(self, chosen: _ChosenBatch) -> int:
        return min(entry.enqueued_ns for entry in chosen.entries) + self._sizing.delay_ns

    def _choose(self) -> _ChosenBatch | None:
        """Return the next batch; `None` if nothing is queued.

        Entries of a less urgent level join only if all of the more urgent ones are in the batch.
        """
        entries: list[Entry] = []
        extent, reason = Extent(0, 0), ""
        for queued in self._queues.oldest(self._window):
            key = entries[0].key if entries else queued[0].key
            alike = [entry for entry in queued if entry.key == key]
            most, policy = self._sizing.request_limit(key)
            limits = TokenLimits(
                self._sizing.max_size,
                self._max_tokens,
                most,
                policy,
                self._times.tokens.fixed_tokens,
            )
            choice = choose(
                [Extent(entry.valid.batch_size, self._length(entry)) for entry in alike],
                extent,
                len(entries),
                limits,
            )
            entries += [alike[index] for index in choice.indices]
            extent, reason = choice.batch, choice.reason
            if not reason and len(alike) < len(queued):
                reason = "shape"
            if reason:
                break
        return _ChosenBatch(entries, extent, reason) if entries else None

    def _length(self, entry: Entry) -> int:
        # Executors pad to the batch's longest row on CPUs, and to the next configured size on GPUs.
        length = entry.valid.length
        return self._padded_size.bucket(length) if self._times.on_gpu else length
