"""The scheduler's end of the link to the cache.

A lookup that is not answered in time is a miss, and so is every lookup while the link is down or
too much is waiting on it. Nothing here raises or waits. Knows keys and bytes, no model.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.cache_messages import (
    EXCHANGE_PATH,
    CacheUsage,
    Finding,
    FromCacheCodec,
    Lookup,
    Store,
    ToCacheCodec,
)
from nereid.rpc import dial_link

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.cache_messages import FromCache, ToCache
    from nereid.pb import nereid_pb2 as pb
    from nereid.rpc import Channel

    OnFound = Callable[[bytes | None], None]

_log = logging.getLogger(__name__)

_MOST_WAITING: Final = 16384
_MOST_UNSENT_BYTES: Final = 64 << 20
_THREADS: Final = 2


class CacheLink(Protocol):
    """What is asked of a link (nereid.rpc.Link) to the cache."""

    up: bool
    on_items: Callable[[list[FromCache]], None]
    on_up: Callable[[], None]
    on_down: Callable[[], None]

    @property
    def pending(self) -> int:
        """Items not yet handed to the stream."""

    def send(self, item: ToCache) -> None:
        """Hand one item over; it leaves with the others of this loop turn."""

    def close(self) -> None:
        """End the link for good."""


class _Codec:
    """The scheduler's end of the Exchange link: lookups and stores out, findings in."""

    def __init__(self) -> None:
        out = ToCacheCodec()
        self.size_bytes, self.encode = out.size_bytes, out.encode
        self.decode = FromCacheCodec().decode


def dial_cache(channel: Channel) -> CacheLink:
    """A link over a channel; it dials again for as long as it is open."""
    return dial_link(
        channel, EXCHANGE_PATH, _Codec(), on_items=_ignore, on_up=_nothing, on_down=_nothing
    )


class CacheClient:
    """The owner of the link and of the lookups under way."""

    def __init__(self, link: CacheLink, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        # By number, oldest first: when each is too late, and who asked.
        self._waiting: dict[int, tuple[float, OnFound]] = {}
        self._last_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        # For digests that take long. Not the loop's own threads, which may all be reading models.
        self.threads = ThreadPoolExecutor(_THREADS, "digest")
        # What the cache last told of itself.
        self.usage = CacheUsage()
        self.lookups = 0
        self.hits = 0
        # Lookups that were not answered, and stores that were not sent.
        self.failures = 0
        link.on_items = self._on_items
        link.on_down = self._on_down

    def lookup(self, key: bytes, on_found: OnFound, trace_context: bytes = b"") -> bool:
        """Ask for a value; on_found is called once, later. False: a miss at once, and no call."""
        self.lookups += 1
        if not self._link.up or len(self._waiting) >= _MOST_WAITING or not self._timeout_s:
            self.failures += 1
            return False
        self._last_id += 1
        self._waiting[self._last_id] = (time.monotonic() + self._timeout_s, on_found)
        self._link.send(Lookup(self._last_id, key, trace_context))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._expire)
        return True

    def store(self, key: bytes, value: bytes, trace_context: bytes = b"") -> None:
        """Have a value kept, if that is possible now."""
        if self.has_room(len(value)):
            self._unsent_bytes += len(value)
            self._link.send(Store(key, value, trace_context=trace_context))
        else:
            self.failures += 1

    def has_room(self, size_bytes: int) -> bool:
        """Whether a value of this size can be sent now."""
        if not self._link.pending:
            self._unsent_bytes = 0
        return self._link.up and self._unsent_bytes + size_bytes <= _MOST_UNSENT_BYTES

    def usage_message(self) -> pb.CacheUsage:
        """What the cache last told, and what did not get as far as there."""
        message = self.usage.to_proto()
        message.failures += self.failures
        return message

    def close(self) -> None:
        """End the link; what is under way is a miss."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self._link.close()
        self._on_down()

    def _on_items(self, items: list[FromCache]) -> None:
        for item in items:
            if isinstance(item, Finding):
                waiting = self._waiting.pop(item.id, None)
                # None: it was given up meanwhile.
                if waiting is not None:
                    if item.value is not None:
                        self.hits += 1
                    _tell(waiting[1], item.value)
            else:
                self.usage = item

    def _on_down(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        missed, self._waiting = self._waiting, {}
        self.failures += len(missed)
        for _, on_found in missed.values():
            _tell(on_found, None)

    def _expire(self) -> None:
        self._timer = None
        # Timers count in whole milliseconds: what is due within one is due now.
        now_s = time.monotonic() + 0.001
        late = []
        for number, (limit_s, _) in self._waiting.items():
            if limit_s > now_s:
                break
            late.append(number)
        self.failures += len(late)
        for number in late:
            _tell(self._waiting.pop(number)[1], None)
        if self._waiting and self._timer is None:
            first_s = next(iter(self._waiting.values()))[0]
            self._timer = self._loop.call_later(max(0.0, first_s - now_s), self._expire)


def _tell(on_found: OnFound, value: bytes | None) -> None:
    """One asker's failure must not keep the others from theirs."""
    try:
        on_found(value)
    except Exception:
        _log.exception("a finding could not be handed over")


def _ignore(items: list[FromCache]) -> None:
    pass


def _nothing() -> None:
    pass
