"""Spans for the sampled lookups and stores of one frame, including the wait for Redis."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nereid.observability.tracing import Span, SpanKind, child_context, monotonic_to_unix_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.cache_messages import CacheLookup, CacheStore, LookupResult
    from nereid.observability.tracing import Tracer
    from nereid_cache.store import OnFound

_now_ns = time.monotonic_ns


class ExchangeTrace:
    """Records the sampled lookups and stores of one frame, by wrapping the store's callbacks."""

    def __init__(
        self, tracer: Tracer, lookups: Sequence[CacheLookup], stores: Sequence[CacheStore]
    ) -> None:
        self._tracer = tracer
        self._lookups = {item.id: item.trace_context for item in lookups if item.trace_context}
        self._stores = stores
        self._started_ns = _now_ns()

    def on_found(self, send: OnFound, results: list[LookupResult]) -> None:
        """Send the results first, then record the lookups."""
        ended_ns = _now_ns()
        send(results)
        for result in results:
            context = self._lookups.get(result.id)
            if context is not None:
                self._record("lookup", context, ended_ns, hit=result.value is not None)

    def on_stored(self, kept: Sequence[bool]) -> None:
        """Record the stores. A store that was not kept is not recorded as an error."""
        ended_ns = _now_ns()
        for store, was_kept in zip(self._stores, kept, strict=True):
            if store.trace_context:
                self._record("store", store.trace_context, ended_ns, kept=was_kept)

    def _record(self, name: str, parent: bytes, ended_ns: int, **attributes: bool) -> None:
        offset_ns = monotonic_to_unix_ns()
        span = Span(
            name=name,
            context=child_context(parent),
            parent=parent,
            start_ns=self._started_ns + offset_ns,
            end_ns=ended_ns + offset_ns,
            attributes={f"nereid.cache.{key}": value for key, value in attributes.items()},
            kind=SpanKind.SERVER,
        )
        self._tracer.record(span)
