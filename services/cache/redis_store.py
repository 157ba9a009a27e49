"""The store in Redis: what gathers while a pipeline is under way leaves with the next one.

At most `connections` pipelines are under way at once. What waits is bounded in number, bytes and
time, and a pipeline in time as a whole, however slowly its answers drip; past that, and whenever
Redis fails, lookups are misses and stores are dropped, both counted.
Knows redis-py's pipelines, not how its client is made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from nereid.core.cache_messages import CacheUsage, Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.cache_messages import Lookup, Store
    from nereid.services.cache.store import OnFindings, OnStored

_log = logging.getLogger(__name__)

_MOST_WAITING_LOOKUPS: Final = 16384
_MOST_WAITING_BYTES: Final = 64 << 20
# Commands that share a pipeline, and with it a moment of Redis' one thread.
_PIPELINE_LENGTH: Final = 1024


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """namespace precedes every key. time_to_live_ms 0: for as long as Redis keeps it.

    An answer is there after wait_timeout_s and run_timeout_s at the latest; None: for ever.
    """

    namespace: str = ""
    time_to_live_ms: int = 0
    connections: int = 1
    wait_timeout_s: float | None = 1.0
    run_timeout_s: float | None = 2.0


@dataclass(slots=True, eq=False)
class _Exchange:
    lookups: Sequence[Lookup]
    stores: Sequence[Store]
    on_findings: OnFindings
    on_stored: OnStored | None
    since_s: float

    @property
    def size_bytes(self) -> int:
        return sum(len(each.value) for each in self.stores)


class RedisStore:
    """Fulfils ResponseStore over a redis-py client, which it owns from here on."""

    def __init__(self, client: Any, options: RedisOptions = RedisOptions()) -> None:
        self._client = client
        self._options = options
        self._prefix = f"{options.namespace}:".encode() if options.namespace else b""
        self._waiting: deque[_Exchange] = deque()
        self._waiting_lookups = 0
        self._waiting_bytes = 0
        self._workers: set[asyncio.Task[None]] = set()
        # Set while something may wait: at most one timer per wait_timeout_s, not one per exchange.
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False
        self._last_error = ""
        self.usage = CacheUsage()

    def exchange(
        self,
        lookups: Sequence[Lookup],
        stores: Sequence[Store],
        on_findings: OnFindings,
        on_stored: OnStored | None = None,
    ) -> None:
        self.usage.lookups += len(lookups)
        exchange = _Exchange(lookups, stores, on_findings, on_stored, time.monotonic())
        full = (
            self._waiting_lookups + len(lookups) > _MOST_WAITING_LOOKUPS
            or self._waiting_bytes + exchange.size_bytes > _MOST_WAITING_BYTES
        )
        if self._closed or full:
            self._fail(exchange)
            return
        self._waiting.append(exchange)
        self._waiting_lookups += len(lookups)
        self._waiting_bytes += exchange.size_bytes
        if self._expiry is None:
            self._expire_later()
        if len(self._workers) < self._options.connections:
            self._workers.add(asyncio.get_running_loop().create_task(self._work()))

    def refresh(self) -> None:
        pass

    async def close(self) -> None:
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        while self._waiting:
            self._fail(self._next())
        await self._client.aclose()

    async def _work(self) -> None:
        try:
            while self._waiting and not self._closed:
                await self._work_off(self._take())
        finally:
            # Here, and not when the task is told done: who is answered last may ask again before
            # that, and would wait for a worker that works no more.
            self._workers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _work_off(self, taken: list[_Exchange]) -> None:
        if not taken:
            return
        try:
            async with asyncio.timeout(self._options.run_timeout_s):
                await self._run(taken)
        except asyncio.CancelledError:
            self._fail_all(taken)
            raise
        except Exception as error:
            self._tell(error)
            self._fail_all(taken)

    def _take(self) -> list[_Exchange]:
        """The next pipeline's; what has waited too long fails."""
        self._drop_late()
        taken: list[_Exchange] = []
        commands = 0
        while self._waiting and commands < _PIPELINE_LENGTH:
            exchange = self._next()
            taken.append(exchange)
            commands += len(exchange.lookups) + len(exchange.stores)
        return taken

    def _next(self) -> _Exchange:
        exchange = self._waiting.popleft()
        self._waiting_lookups -= len(exchange.lookups)
        self._waiting_bytes -= exchange.size_bytes
        return exchange

    def _expire_later(self) -> None:
        limit_s = self._options.wait_timeout_s
        if limit_s is None or not self._waiting:
            return
        left_s = self._waiting[0].since_s + limit_s - time.monotonic()
        self._expiry = asyncio.get_running_loop().call_later(max(left_s, 0.001), self._expire)

    def _expire(self) -> None:
        """Not left to the workers: all of them may be held up by Redis."""
        self._expiry = None
        self._drop_late()
        if self._expiry is None:
            self._expire_later()

    def _drop_late(self) -> None:
        limit_s = self._options.wait_timeout_s
        if limit_s is None:
            return
        oldest_s = time.monotonic() - limit_s
        while self._waiting and self._waiting[0].since_s < oldest_s:
            self._fail(self._next())

    async def _run(self, taken: list[_Exchange]) -> None:
        started_ns = time.perf_counter_ns()
        pipeline = self._client.pipeline(transaction=False)
        prefix = self._prefix
        for exchange in taken:
            for store in exchange.stores:
                time_to_live_ms = store.time_to_live_ms or self._options.time_to_live_ms
                pipeline.set(prefix + store.key, store.value, px=time_to_live_ms or None)
        stores = len(pipeline)
        for exchange in taken:
            for lookup in exchange.lookups:
                pipeline.get(prefix + lookup.key)
        all_results = await pipeline.execute(raise_on_error=False)
        stored, results = iter(all_results[:stores]), iter(all_results[stores:])
        took_ns = time.perf_counter_ns() - started_ns
        failure: Exception | None = None
        for exchange in taken:
            if exchange.lookups:
                self.usage.lookup_ns += took_ns * len(exchange.lookups)
                found = [next(results) for _ in exchange.lookups]
                failure = self._response(exchange, found) or failure
        for exchange in taken:
            if exchange.stores:
                self.usage.store_ns += took_ns * len(exchange.stores)
                results_of_it = [next(stored) for _ in exchange.stores]
                failure = self._stored(exchange, results_of_it) or failure
        self._tell(failure)

    def _response(self, exchange: _Exchange, found: list[Any]) -> Exception | None:
        failure = None
        findings = []
        for lookup, value in zip(exchange.lookups, found, strict=True):
            if isinstance(value, bytes):
                self.usage.hits += 1
                findings.append(Finding(lookup.id, value))
                continue
            if isinstance(value, Exception):
                self.usage.failures += 1
                failure = value
            findings.append(Finding(lookup.id, None))
        _hand_over(exchange, findings)
        # Its lookups are answered: a failure from here on must not answer them again.
        exchange.lookups = ()
        return failure

    def _stored(self, exchange: _Exchange, results: list[Any]) -> Exception | None:
        kept = [not isinstance(result, Exception) for result in results]
        self.usage.stores += sum(kept)
        self.usage.failures += len(kept) - sum(kept)
        _tell_stored(exchange, kept)
        # As with lookups.
        exchange.stores = ()
        return next((result for result in results if isinstance(result, Exception)), None)

    def _fail_all(self, exchanges: list[_Exchange]) -> None:
        for exchange in exchanges:
            self._fail(exchange)

    def _fail(self, exchange: _Exchange) -> None:
        self.usage.failures += len(exchange.lookups) + len(exchange.stores)
        if exchange.lookups:
            _hand_over(exchange, [Finding(each.id, None) for each in exchange.lookups])
        if exchange.stores:
            _tell_stored(exchange, [False] * len(exchange.stores))

    def _tell(self, failure: Exception | None) -> None:
        """Log that Redis fails or is well again, but not for every frame."""
        text = "" if failure is None else f"{type(failure).__name__}: {failure}"
        if text == self._last_error:
            return
        if text:
            _log.warning("Redis fails; what it fails is a miss: %s", text)
        else:
            _log.info("Redis is well again")
        self._last_error = text


def _hand_over(exchange: _Exchange, findings: list[Finding]) -> None:
    try:
        exchange.on_findings(findings)
    except Exception:
        _log.exception("findings could not be handed over")


def _tell_stored(exchange: _Exchange, kept: list[bool]) -> None:
    if exchange.on_stored is None:
        return
    try:
        exchange.on_stored(kept)
    except Exception:
        _log.exception("the end of stores could not be told")
