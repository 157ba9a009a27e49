"""Traces: contexts, spans and sampling.

A trace context is 26 bytes (version, trace id (16), span id (8), flags), followed by the client's
tracestate. It travels with every request, traced or not. Spans are made afterwards, from times that
are measured anyway, and only for sampled requests; nereid.observability.tracers opens the exporter
of spans. With trace files (mode triton) there are no spans: gateways write the files from the times
that come with the responses. The module depends on no service.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import DecodeError

from nereid.core.wire.messages import TracedTensor
from nereid.core.wire.trace_context import CONTEXT_BYTES, TRACE_ID, TRACE_STATE, with_flags
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nereid.core.wire.messages import TraceRule

    _TensorMetadata = Iterable[
        kserve_pb2.ModelInferRequest.InferInputTensor
        | kserve_pb2.ModelInferResponse.InferOutputTensor
    ]

# Maximum size of a tensor whose data is part of a trace; larger data is left out.
MAX_TRACED_TENSOR_BYTES: Final = 1 << 20
_VERSION: Final = b"\x00"
_SAMPLED: Final = b"\x01"
# Flag that gateways send to schedulers: the trace shows tensors.
_WITH_TENSORS: Final = 0x80
# Flag used within the scheduler only: the context is an ensemble's span, which is the parent of the
# spans of the ensemble's steps.
_OF_ENSEMBLE: Final = 0x40
# To compare two clocks, the second clock is read between two readings of the first. The comparison
# is precise enough if the two readings are at most this many nanoseconds apart.
_CLOCK_ERROR_NS: Final = 20_000
_CLOCK_TRIES: Final = 5


# ---- contexts


def is_sampled(context: bytes) -> bool:
    """Return whether the request with this context is traced; false if the context is empty."""
    return len(context) >= CONTEXT_BYTES and bool(context[25] & 1)


def child_context(context: bytes) -> bytes:
    """Return a new sampled context, a child of this one; if this is empty, begin a new trace."""
    if len(context) < CONTEXT_BYTES:
        return _VERSION + secrets.token_bytes(24) + _SAMPLED
    span_id = secrets.token_bytes(8)
    return _VERSION + context[TRACE_ID] + span_id + _SAMPLED + context[TRACE_STATE]


def with_tensors(context: bytes) -> bytes:
    """Return the context with the flag that the trace shows tensors. Clients never see the flag."""
    return with_flags(context, context[25] | _WITH_TENSORS)


def shows_tensors(context: bytes) -> bool:
    """Return whether with_tensors() has marked the context."""
    return len(context) >= CONTEXT_BYTES and bool(context[25] & _WITH_TENSORS)


def above_steps(context: bytes) -> bytes:
    """Return the context that an ensemble passes to its steps; for use in the scheduler only."""
    return with_flags(context, context[25] | _OF_ENSEMBLE)


def is_above_steps(context: bytes) -> bool:
    """Return whether above_steps() has marked the context."""
    return len(context) >= CONTEXT_BYTES and bool(context[25] & _OF_ENSEMBLE)


def monotonic_to_unix_ns() -> int:
    """Return the offset between the clocks: Unix time minus monotonic time, in nanoseconds.

    The offset changes when the system clock is adjusted, so each trace measures it anew.
    """
    offset_ns = 0
    for _ in range(_CLOCK_TRIES):
        before_ns = time.monotonic_ns()
        now_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        offset_ns = now_ns - (before_ns + after_ns) // 2
        if after_ns - before_ns < _CLOCK_ERROR_NS:
            break
        # The thread was interrupted between the readings, so the offset is not precise: child spans
        # could begin before their parents. Try again.
    return offset_ns


# ---- spans

Attribute = bool | int | float | str


class SpanKind(Enum):
    """The kinds of spans in OpenTelemetry that Nereid uses."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span. Times are in nanoseconds since 1970. links are contexts of other spans."""

    name: str
    context: bytes
    parent: bytes
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    links: Sequence[bytes] = ()
    # Name and time of each event.
    events: Sequence[tuple[str, int]] = ()
    # Error text; `None` if the span's work succeeded.
    error: str | None = None
    # CLIENT if the span waits for another process. That process's span is then the child and has
    # the kind SERVER.
    kind: SpanKind = SpanKind.INTERNAL


class Tracer(Protocol):
    """Receiver of a service's spans, which never blocks and never raises."""

    def record(self, *spans: Span) -> None:
        """Export finished spans."""

    def close(self) -> None:
        """Send the remaining spans within a bounded time. Call this outside the event loop."""


# ---- tensors


def traced_inputs(head: bytes, data: Iterable[bytes | None]) -> Iterable[TracedTensor]:
    """Return a request's inputs, from its head and the data of each input.

    data: the bytes of each input; `None` leaves the input's data out.
    """
    try:
        inputs = kserve_pb2.ModelInferRequest.FromString(head).inputs
    except DecodeError:
        return ()
    return _shown("TENSOR_QUEUE_INPUT", inputs, data)


def traced_outputs(head: bytes, data: Iterable[bytes | None]) -> Iterable[TracedTensor]:
    """Return a response's outputs, from its head and the data of each output.

    data: the bytes of each output; `None` leaves the output's data out.
    """
    try:
        outputs = kserve_pb2.ModelInferResponse.FromString(head).outputs
    except DecodeError:
        return ()
    return _shown("TENSOR_BACKEND_OUTPUT", outputs, data)


def _shown(
    activity: str, tensors: _TensorMetadata, data: Iterable[bytes | None]
) -> Iterable[TracedTensor]:
    return (
        TracedTensor(activity, tensor.name, tensor.datatype, tuple(tensor.shape), payload)
        for tensor, payload in zip(tensors, data, strict=False)
    )


# ---- sampling


class Sampler:
    """Chooses the requests that a gateway traces, by Triton's rule.

    Every request that arrives sampled is traced. Of the other requests, every rate-th one is
    traced, up to a limit.
    """

    def __init__(self, rule: TraceRule, *, parent_based: bool = False) -> None:
        """Start counting requests.

        parent_based: true if a request whose parent is not sampled is never traced.
        """
        self.rule = rule
        self._parent_based = parent_based
        self._left = rule.limit if rule.on and rule.rate else 0
        self._rate = rule.rate
        self._seen = 0

    def wants(self, context: bytes) -> bool:
        """Return whether to trace one request with this incoming context."""
        if context:
            if is_sampled(context):
                return True
            if self._parent_based:
                return False
        return self.takes_next()

    def takes_next(self) -> bool:
        """Count one request to which the rate applies; return whether to trace it."""
        if not self._left:
            return False
        self._seen += 1
        if self._seen < self._rate:
            return False
        self._seen = 0
        if self._left > 0:
            self._left -= 1
        return True
