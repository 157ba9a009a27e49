"""Slowest requests, kept while a console is open."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nereid.core.wire.trace_context import TRACE_ID
from nereid.observability.tracing import is_sampled
from nereid.pb import kserve_pb2
from nereid_gateway.plane.slowest import Slowest

if TYPE_CHECKING:
    from nereid.facts import document
    from nereid_gateway.core.request_record import RequestRecord


class SlowRequests:
    """The slowest requests of the last minute."""

    def __init__(self) -> None:
        self._slowest: Slowest[document.SlowRequest] = Slowest()
        # True while a console is open.
        self.watched = False

    def watch(self, *, watched: bool) -> None:
        """Begin or stop to record, and forget earlier requests."""
        self.watched = watched
        self._slowest.clear()

    def slowest(self) -> list[document.SlowRequest]:
        """Return the slowest requests of the last minute, the slowest one first."""
        return self._slowest.slowest(time.monotonic())

    def add_record(self, record: RequestRecord) -> None:
        """Keep a request that has had its last response, if it is among the slowest."""
        if self.watched and not record.cancelled:
            duration_ns = record.responded_ns - record.submitted_ns
            if self._slowest.accepts(duration_ns, time.monotonic()):
                self._slowest.add(duration_ns, _described(record, duration_ns))


def _described(record: RequestRecord, duration_ns: int) -> document.SlowRequest:
    request, error, timings = record.request, record.error, record.timings
    head = kserve_pb2.ModelInferRequest.FromString(request.head)
    shown: document.SlowRequest = {
        "time_s": round(time.time(), 3),
        "model": head.model_name,
        "version": head.model_version,
        "request_id": request.request_id[:200],
        "duration_us": duration_ns / 1000,
    }
    if request.id:
        shown["number"] = str(request.id)
    if error is not None:
        shown["error"] = error.message[:1000]
    elif record.response_head and not shown["version"]:
        reply = kserve_pb2.ModelInferResponse.FromString(record.response_head)
        shown["version"] = reply.model_version
    context = request.trace_context
    if is_sampled(context):
        shown["trace_id"] = context[TRACE_ID].hex()
    if timings is not None:
        shown["phases_us"] = {name: ns / 1000 for name, ns in timings.phases}
        for name in ("batch_size", "instance", "attempt"):
            if value := getattr(timings, name):
                shown[name] = value
    return shown
