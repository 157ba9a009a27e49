"""Traces: contexts, spans and sampling.

A trace context is 26 bytes (version, trace id (16), span id (8), flags) and the client's
tracestate. It travels with every request, traced or not. Spans are made after the fact, from times
taken anyway, and only for sampled requests; nereid.observability.tracers opens what exports them.
With trace files (mode triton) there are no spans: gateways write the files, from the times that
come with the responses. Knows no service.
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

# The data of larger tensors is left out of traces.
MAX_TRACED_TENSOR_BYTES: Final = 1 << 20
_VERSION: Final = b"\x00"
_SAMPLED: Final = b"\x01"
# Among the flags, and from gateway to scheduler only: the trace shows tensors.
_WITH_TENSORS: Final = 0x80
# Among the flags, and within the scheduler only: the span is an ensemble's, above its steps'.
_OF_ENSEMBLE: Final = 0x40
# Two clocks were read at the same time if the readings are this close.
_CLOCK_ERROR_NS: Final = 20_000
_CLOCK_TRIES: Final = 5


# ---- contexts


def is_sampled(context: bytes) -> bool:
    """Whether the request with this context is traced; an empty context is not."""
    return len(context) >= CONTEXT_BYTES and bool(context[25] & 1)


def child_context(context: bytes) -> bytes:
    """The context of a new sampled span below this one; without one, of a new trace's root."""
    if len(context) < CONTEXT_BYTES:
        return _VERSION + secrets.token_bytes(24) + _SAMPLED
    span_id = secrets.token_bytes(8)
    return _VERSION + context[TRACE_ID] + span_id + _SAMPLED + context[TRACE_STATE]


def with_tensors(context: bytes) -> bytes:
    """The context of a request whose trace shows tensors; internal, not for clients."""
    return with_flags(context, context[25] | _WITH_TENSORS)


def shows_tensors(context: bytes) -> bool:
    """Whether the context is one of with_tensors()."""
    return len(context) >= CONTEXT_BYTES and bool(context[25] & _WITH_TENSORS)


def above_steps(context: bytes) -> bytes:
    """An ensemble's context as its steps get it; internal to the scheduler."""
    return with_flags(context, context[25] | _OF_ENSEMBLE)


def is_above_steps(context: bytes) -> bool:
    """Whether the context is one of above_steps()."""
    return len(context) >= CONTEXT_BYTES and bool(context[25] & _OF_ENSEMBLE)


def monotonic_to_unix_ns() -> int:
    """Monotonic time to Unix time. Read anew for each trace, because clocks get adjusted."""
    offset_ns = 0
    for _ in range(_CLOCK_TRIES):
        before_ns = time.monotonic_ns()
        now_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        offset_ns = now_ns - (before_ns + after_ns) // 2
        if after_ns - before_ns < _CLOCK_ERROR_NS:
            break
        # The thread was preempted between the readings: spans would not nest.
    return offset_ns


# ---- spans

Attribute = bool | int | float | str


class SpanKind(Enum):
    """OpenTelemetry's kinds of spans, as far as they occur."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span. Times are nanoseconds since 1970; links are contexts."""

    name: str
    context: bytes
    parent: bytes
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    links: Sequence[bytes] = ()
    # Name and time.
    events: Sequence[tuple[str, int]] = ()
    # None: it succeeded.
    error: str | None = None
    # CLIENT: it waits for another process, whose span below it is a SERVER.
    kind: SpanKind = SpanKind.INTERNAL


class Tracer(Protocol):
    """Receives a service's spans; never blocks, never raises."""

    def record(self, *spans: Span) -> None:
        """Export finished spans."""

    def close(self) -> None:
        """Send what is left, within a bounded time; call it outside the event loop."""


# ---- tensors


def traced_inputs(head: bytes, data: Iterable[bytes | None]) -> Iterable[TracedTensor]:
    """A request's inputs, from its head and their bytes; None: leave the data out."""
    try:
        inputs = kserve_pb2.ModelInferRequest.FromString(head).inputs
    except DecodeError:
        return ()
    return _shown("TENSOR_QUEUE_INPUT", inputs, data)


def traced_outputs(head: bytes, data: Iterable[bytes | None]) -> Iterable[TracedTensor]:
    """As inputs_shown, for a response's outputs."""
    try:
        outputs = kserve_pb2.ModelInferResponse.FromString(head).outputs
    except DecodeError:
        return ()
    return _shown("TENSOR_BACKEND_OUTPUT", outputs, data)


def _shown(
    activity: str, tensors: _TensorMetadata, data: Iterable[bytes | None]
) -> Iterable[TracedTensor]:
    return (
        TracedTensor(activity, tensor.name, tensor.datatype, tuple(tensor.shape), each)
        for tensor, each in zip(tensors, data, strict=False)
    )


# ---- sampling


class Sampler:
    """Which requests a gateway traces: those that arrive sampled, and every rate-th of the others
    up to a limit, as Triton does.
    """

    def __init__(self, rule: TraceRule, *, parent_based: bool = False) -> None:
        """parent_based: requests with a parent that is not sampled are not traced."""
        self.rule = rule
        self._parent_based = parent_based
        self._left = rule.limit if rule.on and rule.rate else 0
        self._rate = rule.rate
        self._seen = 0

    def wants(self, context: bytes) -> bool:
        """Decide on one request with this incoming context."""
        if context:
            if is_sampled(context):
                return True
            if self._parent_based:
                return False
        return self.takes_next()

    def takes_next(self) -> bool:
        """Decide on one request, sampled or not."""
        if not self._left:
            return False
        self._seen += 1
        if self._seen < self._rate:
            return False
        self._seen = 0
        if self._left > 0:
            self._left -= 1
        return True
