"""What the cache tells of the sampled lookups and stores of one frame, in their requests' traces.

Stands between a link and the store for such frames and no others. A span lasts from the frame's
arrival to the store's word, so that a wait for Redis shows. Knows no store.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nereid.observability.tracing import Span, child_of, epoch_offset_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.cache_messages import Finding, Lookup, Store
    from nereid.observability.tracing import Tracer
    from nereid.services.cache.store import OnFindings

_now_ns = time.monotonic_ns


class ExchangeTrace:
    """The sampled ones of a frame's lookups and stores."""

    def __init__(self, tracer: Tracer, lookups: Sequence[Lookup], stores: Sequence[Store]) -> None:
        self._tracer = tracer
        self._lookups = {each.id: each.trace_context for each in lookups if each.trace_context}
        self._stores = stores
        self._started_ns = _now_ns()

    def findings(self, on_findings: OnFindings, findings: list[Finding]) -> None:
        """Hand them on, then tell of them."""
        ended_ns = _now_ns()
        on_findings(findings)
        for found in findings:
            context = self._lookups.get(found.id)
            if context is not None:
                self._record("lookup", context, ended_ns, hit=found.value is not None)

    def stored(self, kept: Sequence[bool]) -> None:
        """Tell of the stores; one that is not kept is no error, only of no use."""
        ended_ns = _now_ns()
        for store, stays in zip(self._stores, kept, strict=True):
            if store.trace_context:
                self._record("store", store.trace_context, ended_ns, kept=stays)

    def _record(self, name: str, parent: bytes, ended_ns: int, **attributes: bool) -> None:
        offset_ns = epoch_offset_ns()
        span = Span(
            name=name,
            context=child_of(parent),
            parent=parent,
            start_ns=self._started_ns + offset_ns,
            end_ns=ended_ns + offset_ns,
            attributes=attributes,
        )
        self._tracer.record(span)
