"""A request's trace as the gateway sees it: sampled here, a root span, what came in and went out.

Stands between a front and the data plane where tracing is on, and nowhere else. A request that is
not sampled passes with its trace context as it came. Traces in files are file_tracing's.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import DecodeError

from nereid.observability.trace_config import parse_trace_config
from nereid.observability.tracing import Span, child_of, epoch_offset_ns, open_tracer
from nereid.pb import kserve_pb2
from nereid.services.gateway.tracing.file_recorder import FileTracing
from nereid.services.gateway.tracing.file_writer import TraceFiles
from nereid.services.gateway.tracing.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferRequest, InferResponse, TraceRules
    from nereid.observability.trace_config import TraceSettings
    from nereid.observability.tracing import Tracer
    from nereid.services.gateway.data_plane import UnderWay

    OnResponse = Callable[[InferResponse], None]

_log = logging.getLogger(__name__)

_now_ns = time.monotonic_ns
_ROOT: Final = "InferRequest"


class Tracing(Protocol):
    """The way to the mesh for requests, with a look at each whether it is to be traced."""

    def infer(
        self, request: InferRequest, on_response: OnResponse, protocol: str, received_ns: int
    ) -> UnderWay:
        """As DataPlane.infer, for a request that came by http or grpc and that its front had whole
        at that time.
        """

    def follow(self, rules: TraceRules) -> None:
        """Go by these rules."""

    def close(self) -> None:
        """Let go of what is left, within a bounded time; call off the event loop."""


def open_tracing(
    settings: TraceSettings, infer: Callable[[InferRequest, OnResponse], UnderWay]
) -> Tracing | None:
    """As the settings say. None: no request is traced."""
    config = parse_trace_config(settings.trace_config)
    sampling = Sampling(config.rule)
    if config.to_file:
        return FileTracing(TraceFiles(config.file), sampling, infer)
    if config.levels and not config.on:
        # Triton starts, too.
        _log.warning("no request is traced: name a file by --trace-config triton,file=PATH")
    tracer = open_tracer(settings, "gateway")
    return None if tracer is None else SpanTracing(tracer, sampling, infer)


class SpanTracing:
    """Tells spans."""

    def __init__(
        self,
        tracer: Tracer,
        sampling: Sampling,
        infer: Callable[[InferRequest, OnResponse], UnderWay],
    ) -> None:
        self._tracer = tracer
        self._sampling = sampling
        self._infer = infer
        self.follow = sampling.follow
        self.close = tracer.close

    def infer(
        self, request: InferRequest, on_response: OnResponse, protocol: str, received_ns: int
    ) -> UnderWay:
        if not self._sampling.sampler_of(request).wants(request.trace_context):
            return self._infer(request, on_response)
        trace = _Trace(self._tracer, request, on_response)
        trace.protocol, trace.received_ns = protocol, received_ns
        trace.under_way = self._infer(request, trace.on_response)
        return trace


class _Trace:
    """One sampled request, until its last answer is handed to the connection or nobody wants it."""

    __slots__ = (
        "_context",
        "_done",
        "_on_response",
        "_parent",
        "_request",
        "_sent_ns",
        "_tracer",
        "protocol",
        "received_ns",
        "under_way",
    )

    def __init__(self, tracer: Tracer, request: InferRequest, on_response: OnResponse) -> None:
        self._tracer = tracer
        self._request = request
        self._on_response = on_response
        self._done = False
        self._parent = request.trace_context
        self._context = request.trace_context = child_of(request.trace_context)
        self._sent_ns = _now_ns()
        self.protocol = ""
        self.received_ns = 0
        self.under_way: UnderWay | None = None

    def on_response(self, response: InferResponse) -> None:
        """Hand the answer on, then, if it is the last, tell the spans."""
        if response.more:
            self._on_response(response)
            return
        responded_ns = _now_ns()
        try:
            self._on_response(response)
        finally:
            error_status = response.error
            error = None if error_status is None else error_status.message
            self._record(error, responded_ns)

    def cancel(self) -> None:
        """The client went before its answer came."""
        if self.under_way is not None:
            self.under_way.cancel()
        self._record("the client is gone", None)

    def set_flow(self, *, paused: bool) -> None:
        if self.under_way is not None:
            self.under_way.set_flow(paused=paused)

    def _record(self, error: str | None, responded_ns: int | None) -> None:
        if self._done:
            return
        self._done = True
        offset_ns = epoch_offset_ns()
        ended_ns = _now_ns() + offset_ns
        received_ns, sent_ns = self.received_ns + offset_ns, self._sent_ns + offset_ns
        spans = [
            Span(
                name=_ROOT,
                context=self._context,
                parent=self._parent,
                start_ns=received_ns,
                end_ns=ended_ns,
                attributes=self._attributes(),
                error=error,
                serves=True,
            ),
            self._part("receive", received_ns, sent_ns),
        ]
        if responded_ns is not None:
            spans.append(self._part("send", responded_ns + offset_ns, ended_ns))
        self._tracer.record(*spans)

    def _part(self, name: str, start_ns: int, end_ns: int) -> Span:
        context = child_of(self._context)
        return Span(
            name=name, context=context, parent=self._context, start_ns=start_ns, end_ns=end_ns
        )

    def _attributes(self) -> dict[str, bool | int | float | str]:
        attributes: dict[str, bool | int | float | str] = {"nereid.protocol": self.protocol}
        if self._request.request_id:
            attributes["triton.request_id"] = self._request.request_id
        try:
            head = kserve_pb2.ModelInferRequest.FromString(self._request.head)
        except DecodeError:
            return attributes
        attributes["triton.model_name"] = head.model_name
        if head.model_version:
            attributes["triton.model_version"] = head.model_version
        return attributes
