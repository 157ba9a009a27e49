"""Triton's dynamic batcher, which decides which queued requests run together, and when.

An entry is QUEUED, then BATCHED in a formed batch, then EXECUTING. As on Triton, batches form ahead
of time, unless queue timeouts, queue limits or priorities are configured.
New entries join only the last formed batch while it is growing. A sealed batch stays as it is.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from nereid_scheduler.batching.policies.closing import (
    NO_CANDIDATES,
    Candidates,
    FormedBatch,
    close,
    read,
    takes_along,
)
from nereid_scheduler.batching.policies.queue_policies import QueuePolicies
from nereid_scheduler.batching.queues import (
    Expiries,
    Fifo,
    PriorityQueues,
    deadline_passed,
    queue_full,
    timeout_expired,
)
from nereid_scheduler.batching.times.batch_times import shape_of
from nereid_scheduler.core.requests.entry import (
    BATCHED,
    QUEUED,
    Batch,
    executing_batch,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from nereid.core.errors import NereidError
    from nereid.model_config import DynamicBatching
    from nereid_scheduler.batching.policies.gathering import Gathering
    from nereid_scheduler.batching.policies.sizing import Sizing
    from nereid_scheduler.core.requests.entry import Entry

# Triton has the same limit.
_FORMED_PER_INSTANCE: Final = 2


class DynamicBatcher:
    """Batcher for requests that do not belong to sequences.

    The growing batch of `_candidates` is the last one in `_formed`.
    """

    def __init__(
        self,
        model_name: str,
        batching: DynamicBatching,
        sizing: Sizing,
        gathering: Gathering | None = None,
        max_pending: int = 0,
    ) -> None:
        """sizing: says how large batches may be and how long they wait.

        gathering: decides whether a free instance waits for its last batch's clients; `None` means
        that it never does.
        """
        self.pending = 0
        self._sizing = sizing
        self._gathering = gathering
        self._model_name = model_name
        self._max_pending = max_pending
        self._policies = QueuePolicies(batching)
        self._queues = PriorityQueues()
        self._formed: deque[FormedBatch] = deque()
        self._candidates = NO_CANDIDATES
        self._expiries = Expiries()

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raise Unavailable if its queue is full."""
        if self._max_pending and self.pending >= self._max_pending:
            raise queue_full(entry)
        if not self._policies.forms_ahead:
            bound = self._policies.of_level(entry.level).max_queue_size
            if bound and self._queues.count(entry.level) >= bound:
                raise queue_full(entry)
        entry.enqueued_ns = now_ns
        entry.state = QUEUED
        if not self._queues.append(entry):
            self._scan_anew(self._candidates.growing)
        self.pending += 1
        if entry.timeout_ns is not None or entry.deadline_ns is not None:
            self._expiries.push(entry, self.pending)

    def pending_ahead(self, level: int) -> int:
        """Return how many entries would be executed before a new entry of this level."""
        return self._queues.count_ahead(level) if self._policies.levels else self.pending

    def last_entries(self, count: int) -> list[Entry]:
        """Return the last `count` entries that are in no formed batch, the last first."""
        return list(islice(self._queues.last(), max(0, count)))

    def requeue(self, entries: Sequence[Entry]) -> None:
        """Put entries back to the front, in this order; queue limits and timeouts do not apply."""
        # Undo the formed batches. Their entries come after the requeued ones.
        undone = [entry for formed in self._formed for entry in formed.entries]
        self._formed.clear()
        self._scan_anew(None)
        self.pending += len(entries)
        for entry in entries:
            entry.timeout_ns = None  # the entry was sent to an instance before its timeout
            self._expiries.push(entry, self.pending)
        self._queues.prepend([*entries, *undone])
        for entry in (*entries, *undone):
            entry.state = QUEUED

    def remove_entry(self, entry: Entry) -> bool:
        """Remove an entry that no instance has; return False if the batcher does not have it."""
        holder, growing = entry.holder, self._candidates.growing
        if isinstance(holder, Fifo):
            holder.discard(entry)
        elif isinstance(holder, FormedBatch):
            entry.holder = None
            holder.entries.remove(entry)
            holder.size -= entry.valid.batch_size
            if not holder.entries:
                self._formed.remove(holder)
                if growing is holder:
                    growing = None
        else:
            return False
        self._scan_anew(growing)
        self.pending -= 1
        return True

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:
        """Return a batch for an instance, or `None` if the instance has to wait."""
        gathering = self._gathering
        if gathering is not None and gathering.should_wait(self.pending, now_ns):
            return None
        if self._formed:
            self.form_batches(now_ns, instances)
        else:
            # The batch leaves at once, so it need not grow.
            self._form(now_ns)
        if not self._formed:
            return None
        batch = self._formed.popleft()
        if self._sizing.delay_ns:
            self._take_along(batch, now_ns)
        if batch.sealed and not self._policies.levels:
            self._join_alike(batch)
        if self._candidates.growing is not None and not self._formed:
            # The growing batch has just left, and the candidates were for it.
            self._scan_anew(None)
        self.pending -= len(batch.entries)
        if gathering is not None:
            gathering.batch_dispatched(batch.entries)
        return executing_batch(batch.entries, batch.size, batch.reason)

    def batch_ended(self, instance: Hashable, batch: Batch, taken_ns: int, now_ns: int) -> None:  # noqa: ARG002 (as OldestBatcher)
        """Record that the version's only instance has executed a batch and has no other batch.

        taken_ns: time since the batch was sent.
        """
        if self._gathering is None:
            return
        requests = len(batch.entries)
        key = shape_of(batch)
        most = min(self._sizing.max_size, self._sizing.max_requests(key))
        self._gathering.batch_ended(key, requests, taken_ns, self.pending, most, now_ns)

    def has_grown(self, now_ns: int, instances: int) -> bool:
        """Return whether the next batch is complete, so that no request could join it later."""
        if not self._sizing.delay_ns:
            return self.pending >= min(self._sizing.max_size, self._sizing.max_requests(None))
        self.form_batches(now_ns, instances)
        first = self._formed[0] if self._formed else None
        return first is not None and (
            first is not self._candidates.growing or first.size >= self._sizing.max_size
        )

    def form_batches(self, now_ns: int, instances: int) -> None:
        """Form batches ahead of time, a few for each instance, and add entries to the last one."""
        if not self._policies.forms_ahead:
            return
        limit = _FORMED_PER_INSTANCE * instances
        while self._candidates.growing is not None or len(self._formed) < limit:
            if not self._form(now_ns):
                break

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        """Remove expired entries and return them with errors; DELAY moves them back instead."""
        expired: list[tuple[Entry, NereidError]] = []
        for entry in self._expiries.due(now_ns):
            if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
                self.remove_entry(entry)
                expired.append((entry, deadline_passed(self._model_name)))
            elif entry.timeout_ns is not None and entry.timeout_ns <= now_ns:
                if self._policies.of_level(entry.level).timeout_action == "DELAY":
                    entry.timeout_ns = None
                    self._queues.delay(entry)
                    self._scan_anew(self._candidates.growing)
                else:
                    self.remove_entry(entry)
                    expired.append((entry, timeout_expired()))
        return expired

    def wake_at_ns(self, now_ns: int) -> int | None:
        """Return the time at which the next entry expires or the next batch closes."""
        at_ns = self._expiries.next_ns()
        closes_ns = self.closes_ns(now_ns)
        if closes_ns is not None and (at_ns is None or closes_ns < at_ns):
            return closes_ns
        return at_ns

    def closes_ns(self, now_ns: int) -> int | None:
        """Return when the queue delay, or an instance's wait for more requests, ends.

        `None` means that neither is in progress.
        """
        if self._gathering is not None and self._gathering.expected and self.pending:
            until_ns = self._gathering.until_ns
            return until_ns if until_ns > now_ns else None
        if not self._sizing.delay_ns or not self._candidates.count:
            return None
        closes_ns = self._candidates.oldest_ns + self._sizing.delay_ns
        # If the delay is over, the batch waits only for a free instance. The owner knows when an
        # instance is free, so no time is returned.
        return closes_ns if closes_ns > now_ns else None

    def _form(self, now_ns: int) -> bool:
        """Form, extend or end the growing batch. Return False if none of these can be done now."""
        found = read(self._candidates, self._queues.scan(), self._sizing)
        closing = close(found, self._sizing, now_ns)
        if closing is None:
            self._candidates = found
            return False
        entries, formed = self._queues.pop(closing.count), found.growing
        if formed is None:
            formed = FormedBatch(found.key, entries)
            self._formed.append(formed)
        else:
            formed.entries += entries
        if entries:
            formed.size, formed.reason = closing.size, closing.reason
        for entry in entries:
            entry.holder = formed
            entry.state = BATCHED
        if found.ended_by == "shape":
            formed.sealed = True
        self._scan_anew(formed if closing.grows else None)
        return True

    def _scan_anew(self, growing: FormedBatch | None) -> None:
        """Let entries join this batch or, if it is `None`, a new one. Forget the candidates."""
        self._queues.rewind()
        self._candidates = NO_CANDIDATES
        if growing is not None:
            self._candidates = Candidates(growing, 0, growing.size, growing.key)

    def _take_along(self, batch: FormedBatch, now_ns: int) -> None:
        formed = self._formed
        while formed and takes_along(batch, formed[0], self._sizing, now_ns):
            following = formed.popleft()
            batch.entries += following.entries
            batch.size += following.size
            batch.reason = "full" if batch.size >= self._sizing.max_size else "delay"

    def _join_alike(self, batch: FormedBatch) -> None:
        """Add entries of the same shape, from behind other shapes, to a batch that leaves.

        The batch was ended by an entry of another shape. That entry cannot starve, as the oldest
        entry of all still leaves first.
        """
        largest = self._sizing.max_preferred or self._sizing.max_size
        most = self._sizing.max_requests(batch.key)
        for following in [formed for formed in self._formed if formed.key == batch.key]:
            together = len(batch.entries) + len(following.entries)
            if batch.size + following.size > largest or together > most:
                return
            self._formed.remove(following)
            if self._candidates.growing is following:
                self._scan_anew(None)
            batch.entries += following.entries
            batch.size += following.size
        most -= len(batch.entries)
        entries = self._queues.extract_alike(batch.key, largest - batch.size, most)
        if entries:
            batch.entries += entries
            batch.size += sum(entry.valid.batch_size for entry in entries)
            self._scan_anew(self._candidates.growing)
