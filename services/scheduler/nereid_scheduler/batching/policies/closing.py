"""Triton's rules of where a batch ends, and when it closes, as functions over values.

`read` extends the candidates by the queued entries that still fit. `close` decides whether they
leave the queue for a batch now, or wait for more. The reasons are those of CLOSING_REASONS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from nereid_scheduler.batching.policies.sizing import Sizing
    from nereid_scheduler.core.requests.entry import Entry


class FormedBatch:
    """Batch that waits for an instance. If it is sealed, nothing may be merged with it."""

    __slots__ = ("entries", "key", "reason", "sealed", "size")

    def __init__(self, key: Hashable, entries: list[Entry]) -> None:
        self.entries = entries
        self.size = 0
        self.key = key
        self.reason = ""
        self.sealed = False


class Closing:
    """Decision that the first `count` candidates leave the queue for a batch.

    size: rows of the batch, with those it had before. grows: entries may still join it.
    """

    __slots__ = ("count", "grows", "reason", "size")

    def __init__(self, count: int, size: int, reason: str, grows: bool) -> None:
        self.count = count
        self.size = size
        self.reason = reason
        self.grows = grows


class Candidates:
    """The first entries of the queue, as far as they fit into the growing batch or a new one.

    size: rows, with those of the growing batch. oldest_ns: when the oldest candidate was queued.
    cut: where the batch closes without a delay. ended_by: why the next entry does not fit.
    """

    __slots__ = ("count", "cut", "ended_by", "growing", "key", "oldest_ns", "size")

    def __init__(  # noqa: PLR0913, PLR0917 - a record
        self,
        growing: FormedBatch | None,
        count: int,
        size: int,
        key: Hashable,
        oldest_ns: int = 0,
        cut: Closing | None = None,
        ended_by: str = "",
    ) -> None:
        self.growing = growing
        self.count = count
        self.size = size
        self.key = key
        self.oldest_ns = oldest_ns
        self.cut = cut
        self.ended_by = ended_by


NO_CANDIDATES: Final = Candidates(None, 0, 0, None)


def read(found: Candidates, entries: Iterable[Entry], sizing: Sizing) -> Candidates:
    """Return the candidates and those that follow, up to the first entry that does not fit."""
    growing, count, size, key = found.growing, found.count, found.size, found.key
    oldest_ns, ended_by = found.oldest_ns, ""
    cut: Closing | None = None
    max_size, delay_ns = sizing.max_size, sizing.delay_ns
    preferred, max_preferred = sizing.preferred, sizing.max_preferred
    ahead = 0 if growing is None else len(growing.entries)
    most, policy = sizing.request_limit(key)
    for entry in entries:
        rows = size + entry.valid.batch_size
        if size:
            if rows > max_preferred and count and cut is None:
                cut = Closing(count, size, "full", grows=False)
            if rows > max_size:
                ended_by = "full"
            elif entry.key != key:
                ended_by = "shape"
            elif ahead + count >= most:
                ended_by = policy
            if ended_by:
                break
        else:
            key = entry.key
            most, policy = sizing.request_limit(key)
        oldest_ns = min(oldest_ns, entry.enqueued_ns) if count else entry.enqueued_ns
        count += 1
        size = rows
        if size in preferred:
            reason = "full" if size >= max_size else "preferred"
            cut = Closing(count, size, reason, grows=delay_ns > 0)
        if size >= max_preferred and not delay_ns:
            # Without a queue delay it is known now where the batch ends. Later entries change
            # nothing.
            break
    return Candidates(growing, count, size, key, oldest_ns, cut, ended_by)


def close(found: Candidates, sizing: Sizing, now_ns: int) -> Closing | None:
    """Return which candidates leave the queue now; `None` if all of them wait."""
    count, size, growing = found.count, found.size, found.growing
    delay_ns = sizing.delay_ns
    delay_over = delay_ns > 0 and count > 0 and now_ns - found.oldest_ns >= delay_ns
    if found.cut is not None and not delay_over:
        return found.cut
    grows = False
    if found.ended_by:
        reason = found.ended_by
    elif not count:
        return None
    elif size >= sizing.max_preferred:
        reason = "preferred"
    else:
        grows = True
        if delay_over:
            reason = "delay"
        elif not delay_ns:
            reason = "immediate"
        elif growing is not None and growing.size not in sizing.preferred:
            # An instance may become free at any moment, so the candidates join now.
            reason = growing.reason
        else:
            return None
    return Closing(count, size, "full" if size >= sizing.max_size else reason, grows)


def takes_along(batch: FormedBatch, following: FormedBatch, sizing: Sizing, now_ns: int) -> bool:
    """Return whether a batch that leaves takes the next one along, whose queue delay is over."""
    if batch.sealed or following.sealed or batch.key != following.key:
        return False
    if batch.size + following.size > sizing.max_size:
        return False
    oldest_ns = min(entry.enqueued_ns for entry in following.entries)
    return now_ns - oldest_ns > sizing.delay_ns
