"""Scheduler's end of the link to the cache.

    state of a lookup   event                                          result
    (new)               the link is down, or too many are pending      a miss at once, counted as a
                                                                       failure
    pending             the cache returns a value with a valid tag,    a hit
                        or one from this process's memory
    pending             the cache has no value                         a miss
    pending             the value's tag is wrong: this mesh did not    a miss, counted as a failure
                        store it under its key
    pending             the time is over, or the link breaks           a miss, counted as a failure

No function of this module raises or waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.methods import EXCHANGE_PATH
from nereid.core.wire.cache_messages import (
    CacheLookup,
    CacheReplyCodec,
    CacheRequestCodec,
    CacheStore,
    CacheUsage,
    LookupResult,
)
from nereid.rpc import dial_link
from nereid_scheduler.versions.caching.cache_admission import CacheAdmission
from nereid_scheduler.versions.caching.cached_values import ValueSeal

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.cache_messages import CacheReply, CacheRequest
    from nereid.pb import nereid_pb2 as pb
    from nereid.rpc import Channel
    from nereid_scheduler.versions.caching.cache_secrets import CacheSecrets

    # Called with the value, or with `None` for a miss.
    OnResult = Callable[[bytes | None], None]

_log = logging.getLogger(__name__)

_MAX_PENDING: Final = 16384
_MAX_UNSENT_BYTES: Final = 64 << 20
_THREADS: Final = 2
# Tags of larger values are computed in a thread: they take 0.3 ms per MiB.
_LARGE_VALUE_BYTES: Final = 256 << 10
_LOG_INTERVAL_S: Final = 60.0


class CacheLink(Protocol):
    """Interface for the link to the cache; nereid.rpc.Link implements it."""

    up: bool
    on_items: Callable[[list[CacheReply]], None]
    on_up: Callable[[], None]
    on_down: Callable[[], None]

    @property
    def pending(self) -> int:
        """Number of items that are not yet written to the stream."""

    def send(self, item: CacheRequest) -> None:
        """Send an item together with others at the end of this turn of the event loop."""

    def close(self) -> None:
        """Close the link for good."""


class _Codec:
    def __init__(self) -> None:
        out = CacheRequestCodec()
        self.size_bytes, self.encode = out.size_bytes, out.encode
        self.decode = CacheReplyCodec().decode


def dial_cache(channel: Channel) -> CacheLink:
    """Return a link over a channel; the link reconnects until it is closed."""
    return dial_link(
        channel, EXCHANGE_PATH, _Codec(), on_items=_ignore, on_up=_nothing, on_down=_nothing
    )


class CacheClient:
    """Client of the cache, with its link and the pending lookups."""

    def __init__(
        self,
        link: CacheLink,
        secrets: CacheSecrets,
        timeout_s: float,
        max_unsent_bytes: int = _MAX_UNSENT_BYTES,
        *,
        in_this_process: bool = False,
    ) -> None:
        """Use `link`. If the cache stores values in this process's memory, these need no tags."""
        self._link = link
        self.secrets = secrets
        self._seal = None if in_this_process else ValueSeal(secrets.value_key)
        self._timeout_s = timeout_s
        self._max_unsent_bytes = max_unsent_bytes
        self._loop = asyncio.get_running_loop()
        # Key: a lookup's number. Value: time limit, key and callback. The oldest is first.
        self._lookups: dict[int, tuple[float, bytes, OnResult]] = {}
        self._last_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        # For large digests and tags. The event loop's own threads may be busy with reading models.
        self.threads = ThreadPoolExecutor(_THREADS, "digest")
        self.usage = CacheUsage()
        # Counts from before the cache's restarts, so that shown counters do not fall.
        self._earlier = CacheUsage()
        self._admission = CacheAdmission()
        self.lookups = 0
        self.hits = 0
        # Lookups without a result, values with a wrong tag, and stores that were not sent.
        self.failures = 0
        # Values with a wrong tag since the last log line, and the earliest time of the next one.
        self._refused = 0
        self._log_due_s = 0.0
        link.on_items = self._on_items
        link.on_down = self._on_down

    def lookup(self, key: bytes, on_result: OnResult, trace_context: bytes = b"") -> bool:
        """Look up a value. Return False for a miss at once; else call `on_result` later, once."""
        self.lookups += 1
        if not self._link.up or len(self._lookups) >= _MAX_PENDING or not self._timeout_s:
            self.failures += 1
            return False
        self._last_id += 1
        self._lookups[self._last_id] = (self._loop.time() + self._timeout_s, key, on_result)
        self._link.send(CacheLookup(self._last_id, key, trace_context))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._expire)
        return True

    def store(self, key: bytes, value: bytes, trace_context: bytes = b"") -> None:
        """Send a value to the cache to be stored, if it can be sent now."""
        if self.can_send(len(value)):
            self._unsent_bytes += len(value)
            if self._seal is None:
                self._send_store(key, trace_context, value)
            else:
                on_sealed = partial(self._send_store, key, trace_context)
                self._run(partial(self._seal.seal, key, value), len(value), on_sealed)
        else:
            self.failures += 1

    def can_send(self, size_bytes: int) -> bool:
        """Return whether a value of this size can be sent now."""
        if not self._link.pending:
            self._unsent_bytes = 0
        return self._link.up and self._unsent_bytes + size_bytes <= self._max_unsent_bytes

    def admits(self, key: bytes, size_bytes: int) -> bool:
        """Return whether to store a response of this size. Call this once for each response."""
        return self._admission.admit(key, size_bytes, self.usage)

    def usage_message(self) -> pb.CacheUsage:
        """Return the cache's last report, with the failures of this client added."""
        usage = replace(self.usage)
        usage.add_counts(self._earlier)
        message = usage.to_proto()
        message.failures += self.failures
        return message

    def close(self) -> None:
        """Close the link; pending lookups become misses."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self._link.close()
        self._on_down()

    def _on_items(self, items: list[CacheReply]) -> None:
        for item in items:
            if isinstance(item, LookupResult):
                lookup = self._lookups.pop(item.id, None)
                # An unknown lookup has timed out.
                if lookup is not None:
                    self._on_value(lookup[1], lookup[2], item.value)
            else:
                if item.counts_less_than(self.usage):
                    self._earlier.add_counts(self.usage)
                self.usage = item

    def _on_value(self, key: bytes, on_result: OnResult, value: bytes | None) -> None:
        if value is None:
            _report(on_result, None)
        elif self._seal is None:
            self.hits += 1
            _report(on_result, value)
        else:
            on_opened = partial(self._on_opened, on_result)
            self._run(partial(self._seal.open, key, value), len(value), on_opened)

    def _on_opened(self, on_result: OnResult, value: bytes | None) -> None:
        if value is None:
            self.failures += 1
            self._log_refusal()
        else:
            self.hits += 1
        _report(on_result, value)

    def _send_store(self, key: bytes, trace_context: bytes, value: bytes | None) -> None:
        if value is not None and self._link.up:
            self._link.send(CacheStore(key, value, trace_context=trace_context))
        else:
            self.failures += 1

    def _run(self, work: Callable[[], bytes | None], size_bytes: int, on_done: OnResult) -> None:
        """Call `on_done` with the result of `work`, which runs in a thread for large values."""
        if size_bytes <= _LARGE_VALUE_BYTES:
            on_done(work())
            return
        future = self._loop.run_in_executor(self.threads, work)
        future.add_done_callback(partial(_report_result, on_done))

    def _log_refusal(self) -> None:
        self._refused += 1
        now_s = time.monotonic()
        if now_s >= self._log_due_s:
            self._log_due_s = now_s + _LOG_INTERVAL_S
            _log.warning(
                "the cache returned values that this mesh did not store; counting them as misses"
                " values=%d; find out what else can write to the cache's store",
                self._refused,
            )
            self._refused = 0

    def _on_down(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        missed, self._lookups = self._lookups, {}
        self.failures += len(missed)
        for *_, on_result in missed.values():
            _report(on_result, None)

    def _expire(self) -> None:
        self._timer = None
        # Timers have a resolution of a millisecond.
        now_s = self._loop.time() + 0.001
        expired = []
        for number, (limit_s, *_) in self._lookups.items():
            if limit_s > now_s:
                break
            expired.append(number)
        self.failures += len(expired)
        for number in expired:
            _report(self._lookups.pop(number)[2], None)
        if self._lookups and self._timer is None:
            first_s = next(iter(self._lookups.values()))[0]
            self._timer = self._loop.call_later(max(0.0, first_s - now_s), self._expire)


def _report_result(on_done: OnResult, future: asyncio.Future[bytes | None]) -> None:
    # Closing the client cancels the future.
    if future.cancelled() or future.exception() is not None:
        on_done(None)
    else:
        on_done(future.result())


def _report(on_result: OnResult, value: bytes | None) -> None:
    """Call a callback. If it raises, log the exception, so that other callbacks still run."""
    try:
        on_result(value)
    except Exception:
        _log.exception("the callback of a cache lookup failed")


def _ignore(items: list[CacheReply]) -> None:
    pass


def _nothing() -> None:
    pass
