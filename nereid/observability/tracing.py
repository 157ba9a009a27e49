"""Traces: contexts, spans and sampling.

A context is version (1 byte), trace id (16), span id (8), flags (1), then the client's tracestate.
It travels with every request. Spans are made afterwards, only for sampled requests. In mode triton
there are no spans: gateways write files from the responses' times.
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

# Larger tensors are left out of a trace.
MAX_TRACED_TENSOR_BYTES: Final = 1 << 20
_VERSION: Final = b"\x00"
_SAMPLED: Final = b"\x01"
# Flag that gateways send to schedulers: the trace shows tensors.
_WITH_TENSORS: Final = 0x80
# Flag within the scheduler: the span of an ensemble, the parent of its steps' spans.
_OF_ENSEMBLE: Final = 0x40
# The second clock is read between two readings of the first, at most this far apart.
_CLOCK_ERROR_NS: Final = 20_000
_CLOCK_TRIES: Final = 5


def is_sampled(context: bytes) -> bool:
    """Return whether the request with this context is traced; false if the context is empty."""
    return len(context) >= CONTEXT_BYTES and bool(context[25] & 1)


def child_context(context: bytes) -> bytes:
    """Return a new sampled child of this context; if it is empty, begin a new trace."""
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
    """Return Unix time minus monotonic time, in ns.

    Each trace measures this anew, because the system clock may be adjusted.
    """
    offset_ns = 0
    for _ in range(_CLOCK_TRIES):
        before_ns = time.monotonic_ns()
        now_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        offset_ns = now_ns - (before_ns + after_ns) // 2
        if after_ns - before_ns < _CLOCK_ERROR_NS:
            break
        # The thread was interrupted, so child spans could begin before their parents. Try again.
    return offset_ns


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
    # `None` if the span's work succeeded.
    error: str | None = None
    # CLIENT if the span waits for another process, whose child span then has the kind SERVER.
    kind: SpanKind = SpanKind.INTERNAL


class Tracer(Protocol):
    """Receiver of a service's spans, which never blocks and never raises."""

    def record(self, *spans: Span) -> None:
        """Export finished spans."""

    def close(self) -> None:
        """Send the remaining spans within a bounded time. Call this outside the event loop."""


def traced_inputs(head: bytes, data: Iterable[bytes | None]) -> Iterable[TracedTensor]:
    """Return a request's inputs, from head and bytes; `None` leaves an input's data out."""
    try:
        inputs = kserve_pb2.ModelInferRequest.FromString(head).inputs
    except DecodeError:
        return ()
    return _shown("TENSOR_QUEUE_INPUT", inputs, data)


def traced_outputs(head: bytes, data: Iterable[bytes | None]) -> Iterable[TracedTensor]:
    """Return a response's outputs, from head and bytes; `None` leaves an output's data out."""
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


class Sampler:
    """Chooses the requests to trace: all that arrive sampled, and every rate-th other.

    The number of the others is limited.
    """

    def __init__(self, rule: TraceRule, *, parent_based: bool = False) -> None:
        """Start counting. parent_based: a request whose parent is not sampled is never traced."""
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
