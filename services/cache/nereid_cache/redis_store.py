"""The store in Redis: exchanges that arrive while a pipeline is pending share the next pipeline.

When a limit is exceeded or Redis fails, lookups are misses and stores are dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from nereid.core.wire.cache_messages import CacheUsage, LookupResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.cache_messages import CacheLookup, CacheStore
    from nereid_cache.store import OnFound, OnStored

_log = logging.getLogger(__name__)

# Redis' single thread serves no other client during a pipeline.
_PIPELINE_LENGTH: Final = 1024


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """Options of the store in Redis.

    namespace: precedes every key. time_to_live_ms: 0 keeps values as long as Redis does.
    wait_timeout_s, run_timeout_s: limits in the queue and in a pipeline; None means no limit.
    """

    namespace: str = ""
    time_to_live_ms: int = 0
    connections: int = 1
    wait_timeout_s: float | None = 1.0
    run_timeout_s: float | None = 2.0
    # Limits for all waiting exchanges together.
    max_waiting_lookups: int = 16384
    max_waiting_bytes: int = 64 << 20


@dataclass(slots=True, eq=False)
class _Exchange:
    lookups: Sequence[CacheLookup]
    stores: Sequence[CacheStore]
    on_found: OnFound
    on_stored: OnStored | None
    since_s: float

    @property
    def size_bytes(self) -> int:
        return sum(len(store.value) for store in self.stores)


class RedisStore:
    """A ResponseStore over a redis-py client, which the store owns and closes."""

    def __init__(self, client: Any, options: RedisOptions = RedisOptions()) -> None:
        self._client = client
        self._options = options
        self._prefix = f"{options.namespace}:".encode() if options.namespace else b""
        self._waiting: deque[_Exchange] = deque()
        self._waiting_lookups = 0
        self._waiting_bytes = 0
        self._workers: set[asyncio.Task[None]] = set()
        # Runs while an exchange may be waiting. One timer serves all exchanges.
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._last_error = ""
        self._last_refusal = ""
        self.usage = CacheUsage()

    def exchange(
        self,
        lookups: Sequence[CacheLookup],
        stores: Sequence[CacheStore],
        on_found: OnFound,
        on_stored: OnStored | None = None,
    ) -> None:
        """Queue an exchange for a pipeline, or fail it at once; see ResponseStore.exchange."""
        self.usage.lookups += len(lookups)
        exchange = _Exchange(lookups, stores, on_found, on_stored, time.monotonic())
        full = (
            self._waiting_lookups + len(lookups) > self._options.max_waiting_lookups
            or self._waiting_bytes + exchange.size_bytes > self._options.max_waiting_bytes
        )
        if self._closed or full:
            self._fail(exchange)
            return
        self._waiting.append(exchange)
        self._waiting_lookups += len(lookups)
        self._waiting_bytes += exchange.size_bytes
        if self._expiry_timer is None:
            self._start_expiry_timer()
        if len(self._workers) < self._options.connections:
            self._workers.add(asyncio.get_running_loop().create_task(self._run_worker()))

    def refresh_usage(self) -> None:
        """Do nothing, because the counters are always current."""

    async def close(self) -> None:
        """Cancel the pipelines, fail all exchanges, and close the client."""
        self._closed = True
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        while self._waiting:
            self._fail(self._pop_waiting())
        await self._client.aclose()

    async def _run_worker(self) -> None:
        try:
            while self._waiting and not self._closed:
                await self._run_or_fail(self._next_pipeline())
        finally:
            # A done callback would be too late: an exchange that arrives before it would wait for
            # ever.
            self._workers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _run_or_fail(self, exchanges: list[_Exchange]) -> None:
        if not exchanges:
            return
        try:
            async with asyncio.timeout(self._options.run_timeout_s):
                await self._run_pipeline(exchanges)
        except asyncio.CancelledError:
            self._fail_all(exchanges)
            raise
        except Exception as error:
            self._log_change(error)
            self._fail_all(exchanges)

    def _next_pipeline(self) -> list[_Exchange]:
        self._fail_expired()
        exchanges: list[_Exchange] = []
        commands = 0
        while self._waiting and commands < _PIPELINE_LENGTH:
            exchange = self._pop_waiting()
            exchanges.append(exchange)
            commands += len(exchange.lookups) + len(exchange.stores)
        return exchanges

    def _pop_waiting(self) -> _Exchange:
        exchange = self._waiting.popleft()
        self._waiting_lookups -= len(exchange.lookups)
        self._waiting_bytes -= exchange.size_bytes
        return exchange

    def _start_expiry_timer(self) -> None:
        limit_s = self._options.wait_timeout_s
        if limit_s is None or not self._waiting:
            return
        left_s = self._waiting[0].since_s + limit_s - time.monotonic()
        self._expiry_timer = asyncio.get_running_loop().call_later(
            max(left_s, 0.001), self._on_expiry
        )

    def _on_expiry(self) -> None:
        """Fail expired exchanges, because all workers may be waiting for Redis."""
        self._expiry_timer = None
        self._fail_expired()
        if self._expiry_timer is None:
            self._start_expiry_timer()

    def _fail_expired(self) -> None:
        limit_s = self._options.wait_timeout_s
        if limit_s is None:
            return
        oldest_s = time.monotonic() - limit_s
        while self._waiting and self._waiting[0].since_s < oldest_s:
            self._fail(self._pop_waiting())

    async def _run_pipeline(self, exchanges: list[_Exchange]) -> None:
        started_ns = time.perf_counter_ns()
        pipeline = self._client.pipeline(transaction=False)
        for exchange in exchanges:
            for store in exchange.stores:
                time_to_live_ms = store.time_to_live_ms or self._options.time_to_live_ms
                pipeline.set(self._name(store.key), store.value, px=time_to_live_ms or None)
        stores = len(pipeline)
        for exchange in exchanges:
            for lookup in exchange.lookups:
                pipeline.get(self._name(lookup.key))
        all_results = await pipeline.execute(raise_on_error=False)
        stored, results = iter(all_results[:stores]), iter(all_results[stores:])
        took_ns = time.perf_counter_ns() - started_ns
        error: Exception | None = None
        refusal: Exception | None = None
        for exchange in exchanges:
            if exchange.lookups:
                self.usage.lookup_ns += took_ns * len(exchange.lookups)
                values = [next(results) for _ in exchange.lookups]
                error = self._finish_lookups(exchange, values) or error
        for exchange in exchanges:
            if exchange.stores:
                self.usage.store_ns += took_ns * len(exchange.stores)
                replies = [next(stored) for _ in exchange.stores]
                refusal = self._finish_stores(exchange, replies) or refusal
        self._log_change(error)
        if stores:
            self._log_refusal(refusal)

    def _name(self, key: bytes) -> bytes:
        return self._prefix + key.hex().encode()

    def _finish_lookups(self, exchange: _Exchange, values: list[Any]) -> Exception | None:
        error: Exception | None = None
        results = []
        for lookup, value in zip(exchange.lookups, values, strict=True):
            if isinstance(value, bytes) and len(value) <= self._options.max_waiting_bytes:
                self.usage.hits += 1
                results.append(LookupResult(lookup.id, value))
                continue
            if isinstance(value, bytes):
                # Schedulers must not hold what others write. No larger value is ever stored.
                self.usage.failures += 1
                error = ValueError(f"a value of {len(value)} bytes, which no scheduler stored")
            elif isinstance(value, Exception):
                self.usage.failures += 1
                error = value
            results.append(LookupResult(lookup.id, None))
        _report_found(exchange, results)
        # A later error in this pipeline must not report these again.
        exchange.lookups = ()
        return error

    def _finish_stores(self, exchange: _Exchange, replies: list[Any]) -> Exception | None:
        kept = [not isinstance(reply, Exception) for reply in replies]
        self.usage.stores += sum(kept)
        self.usage.failures += len(kept) - sum(kept)
        _report_stored(exchange, kept)
        exchange.stores = ()
        return next((reply for reply in replies if isinstance(reply, Exception)), None)

    def _fail_all(self, exchanges: list[_Exchange]) -> None:
        for exchange in exchanges:
            self._fail(exchange)

    def _fail(self, exchange: _Exchange) -> None:
        self.usage.failures += len(exchange.lookups) + len(exchange.stores)
        if exchange.lookups:
            _report_found(exchange, [LookupResult(item.id, None) for item in exchange.lookups])
        if exchange.stores:
            _report_stored(exchange, [False] * len(exchange.stores))

    def _log_change(self, error: Exception | None) -> None:
        """Log once that Redis begins to fail or works again."""
        text = "" if error is None else f"{type(error).__name__}: {error}"
        if text == self._last_error:
            return
        if text:
            _log.warning("Redis fails; lookups are misses meanwhile: %s", text)
        else:
            _log.info("Redis works again; responses are cached")
        self._last_error = text

    def _log_refusal(self, error: Exception | None) -> None:
        """Log once that Redis, which may be full, begins to refuse values, or takes them."""
        text = "" if error is None else f"{type(error).__name__}: {error}"
        if text == self._last_refusal:
            return
        if text:
            _log.warning("Redis takes no values; earlier ones are still found: %s", text)
        else:
            _log.info("Redis takes values again")
        self._last_refusal = text


def _report_found(exchange: _Exchange, results: list[LookupResult]) -> None:
    try:
        exchange.on_found(results)
    except Exception:
        _log.exception("a scheduler gets no results of %d lookups; they time out", len(results))


def _report_stored(exchange: _Exchange, kept: list[bool]) -> None:
    if exchange.on_stored is None:
        return
    try:
        exchange.on_stored(kept)
    except Exception:
        _log.exception("a scheduler is not notified about %d entries that it stored", len(kept))
