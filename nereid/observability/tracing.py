"""Traces: trace contexts, spans, --trace-config and sampling.

A trace context is 26 bytes: version, trace id (16), span id (8), flags. It travels with every
request, traced or not. Spans are made after the fact, from times taken anyway, and only for sampled
requests. nereid.observability.otlp exports them and is imported only where tracing
is on. With trace files (mode triton) there are no spans: gateways write the files, from the times
that come with the responses. Knows no service.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from google.protobuf.message import DecodeError

from nereid.config.flags import Topic, flag, integer
from nereid.core.messages import TracedTensor, TraceRule
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    _TensorMetadata = Iterable[
        kserve_pb2.ModelInferRequest.InferInputTensor
        | kserve_pb2.ModelInferResponse.InferOutputTensor
    ]

CONTEXT_BYTES: Final = 26
# The data of larger tensors is left out of traces.
LARGEST_TENSOR_BYTES: Final = 1 << 20
_VERSION: Final = b"\x00"
_SAMPLED: Final = b"\x01"
# Among the flags, and from gateway to scheduler only: the trace shows tensors.
_WITH_TENSORS: Final = 0x80
_OFF: Final = "OFF"
TIMESTAMPS: Final = "TIMESTAMPS"
TENSORS: Final = "TENSORS"
LEVELS: Final = (TIMESTAMPS, TENSORS)
_OLDER_LEVELS: Final = {"MIN": TIMESTAMPS, "MAX": TIMESTAMPS}
FILE_MODE: Final = "triton"
SPAN_MODE: Final = "opentelemetry"
_LARGEST_RATE: Final = (1 << 32) - 1
# Two clocks were read at the same time if the readings are this close.
_CLOCK_ERROR_NS: Final = 20_000
_CLOCK_TRIES: Final = 5
_PATHS: Final = ("", "/")


# ---- contexts


def is_sampled(context: bytes) -> bool:
    """Whether the request with this context is traced; an empty context is not."""
    return len(context) == CONTEXT_BYTES and bool(context[25] & 1)


def child_of(context: bytes) -> bytes:
    """The context of a new sampled span below this one; without one, of a new trace's root."""
    trace_id = context[1:17] if len(context) == CONTEXT_BYTES else secrets.token_bytes(16)
    return _VERSION + trace_id + secrets.token_bytes(8) + _SAMPLED


def with_tensors(context: bytes) -> bytes:
    """The context of a request whose trace shows tensors; internal, not for clients."""
    return context[:25] + bytes((context[25] | _WITH_TENSORS,))


def shows_tensors(context: bytes) -> bool:
    """Whether the context is one of with_tensors()."""
    return len(context) == CONTEXT_BYTES and bool(context[25] & _WITH_TENSORS)


def epoch_offset_ns() -> int:
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
    # It serves a request of another process.
    serves: bool = False


class Tracer(Protocol):
    """Receives a service's spans; never blocks, never raises."""

    def record(self, *spans: Span) -> None:
        """Export finished spans."""

    def close(self) -> None:
        """Send what is left, within a bounded time; call it outside the event loop."""


# ---- tensors


def inputs_shown(head: bytes, data: Iterable[bytes | None]) -> Iterable[TracedTensor]:
    """A request's inputs, from its head and their bytes; None: leave the data out."""
    try:
        inputs = kserve_pb2.ModelInferRequest.FromString(head).inputs
    except DecodeError:
        return ()
    return _shown("TENSOR_QUEUE_INPUT", inputs, data)


def outputs_shown(head: bytes, data: Iterable[bytes | None]) -> Iterable[TracedTensor]:
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


# ---- settings


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """What --trace-config says. count and rate apply to requests that arrive unsampled."""

    rate: int = 1000
    # Some of LEVELS, in that order; none: off.
    levels: tuple[str, ...] = ()
    count: int = -1
    # None: not given.
    mode: str | None = None
    # Where traces are written, and how many to one file; 0: all.
    file: str = ""
    log_frequency: int = 0
    url: str | None = None
    resource: tuple[tuple[str, str], ...] = ()
    max_queue_size: int = 2048
    schedule_delay_ms: int = 5000
    max_export_batch_size: int = 512

    @property
    def to_file(self) -> bool:
        """Whether traces are written to files."""
        return bool(self.file) and self.mode in (None, FILE_MODE)

    @property
    def to_spans(self) -> bool:
        """Whether spans are exported; without a level, only for requests that arrive sampled."""
        if self.to_file or self.mode == FILE_MODE:
            return False
        return bool(self.levels) or self.mode == SPAN_MODE

    @property
    def on(self) -> bool:
        """Whether any request may be traced."""
        return self.to_file or self.to_spans

    @property
    def rule(self) -> TraceRule:
        """Which requests are traced that arrive unsampled."""
        return trace_rule(self.levels, self.rate, self.count, self.log_frequency)


def trace_rule(levels: Sequence[str], rate: int, count: int, log_frequency: int) -> TraceRule:
    """The rule that settings describe; without levels, nothing is traced."""
    tensors = TENSORS in levels
    times = TIMESTAMPS in levels or not tensors
    return TraceRule(bool(levels), rate, count, log_frequency, times, tensors)


def _level(text: str) -> str:
    level = _OLDER_LEVELS.get(text.upper(), text.upper())
    if level not in (_OFF, *LEVELS):
        raise ValueError(f"expected a level: {', '.join((_OFF, *LEVELS))}")
    return level


def _mode(text: str) -> str:
    if text not in (FILE_MODE, SPAN_MODE):
        raise ValueError(f"expected mode={FILE_MODE} or mode={SPAN_MODE}")
    return text


def _url(text: str) -> str:
    """host:port, http://host:port or https://host:port."""
    scheme, colon, rest = text.partition("://")
    if not colon:
        scheme, rest = "http", text
    host, slash, path = rest.partition("/")
    if scheme not in ("http", "https") or not host:
        raise ValueError("expected http://host:4317 or https://host:4317")
    if slash + path not in _PATHS:
        raise ValueError(
            "traces leave by OTLP over gRPC, whose URL has no path: expected http://host:4317"
        )
    return f"{scheme}://{host}"


def _resource(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError("expected opentelemetry,resource=key=value")
    return key, value


_GENERAL: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "rate": ("rate", integer(0, _LARGEST_RATE)),
    "level": ("levels", _level),
    "count": ("count", integer(-1)),
    "mode": ("mode", _mode),
}
_FILE: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "file": ("file", str),
    "log-frequency": ("log_frequency", integer(0, _LARGEST_RATE)),
}
_EXPORT: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "url": ("url", _url),
    "resource": ("resource", _resource),
    "bsp_max_queue_size": ("max_queue_size", integer(1)),
    "bsp_schedule_delay": ("schedule_delay_ms", integer(1)),
    "bsp_max_export_batch_size": ("max_export_batch_size", integer(1)),
}


def _setting(text: str) -> tuple[str, Any]:
    """The field of TraceConfig that one --trace-config sets, and its value."""
    key, equals, value = text.partition("=")
    mode, comma, option = (part.strip() for part in key.partition(","))
    if not equals:
        raise ValueError("expected setting=value, triton,setting=value or opentelemetry,...")
    table, name = _GENERAL, mode
    if comma:
        table, name = _FILE if _mode(mode) == FILE_MODE else _EXPORT, option
    if name not in table:
        raise ValueError(f"unknown setting '{name}', there are {', '.join(table)}")
    field_name, parse = table[name]
    return field_name, parse(value.strip())


def _checked_setting(text: str) -> str:
    _setting(text)
    return text


def parse_trace_config(texts: Sequence[str]) -> TraceConfig:
    """All --trace-config flags together; the last of each setting counts, resources add up."""
    values: dict[str, Any] = {}
    resource: dict[str, str] = {}
    for text in texts:
        name, value = _setting(text)
        if name == "resource":
            resource[value[0]] = value[1]
        elif name == "levels":
            # Each flag adds one level.
            given = {*values.get(name, ()), value} if value != _OFF else ()
            values[name] = tuple(level for level in LEVELS if level in given)
        else:
            values[name] = value
    return TraceConfig(**values, resource=tuple(resource.items()))


_DEPRECATED: Final = {
    "--trace-file": "triton,file=",
    "--trace-level": "level=",
    "--trace-rate": "rate=",
    "--trace-count": "count=",
    "--trace-log-frequency": "triton,log-frequency=",
}


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """The flag for traces; every service's settings have it."""

    TOPIC: ClassVar = Topic.TRACING

    trace_config: tuple[str, ...] = flag(
        (), "setting=value (rate, level, count, mode), triton,setting=value (file,"
        " log-frequency) or opentelemetry,setting=value (url, resource, bsp_...); may be given"
        " several times", _checked_setting, deprecated=_DEPRECATED, repeated=True,
    )  # fmt: skip


# ---- sampling


class Sampler:
    """Which requests a gateway traces: those that arrive sampled, and every rate-th of the others
    up to a limit, as Triton does.
    """

    def __init__(self, rule: TraceRule) -> None:
        self.rule = rule
        self._left = rule.limit if rule.on and rule.rate else 0
        self._rate = rule.rate
        self._seen = 0

    def wants(self, context: bytes) -> bool:
        """Decide on one request with this incoming context."""
        return bool(context and is_sampled(context)) or self.takes_next()

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


def open_tracer(settings: TraceSettings, service: str, instance: str = "") -> Tracer | None:
    """A service's tracer; instance names one of several alike. None: spans are off."""
    config = parse_trace_config(settings.trace_config)
    if not config.to_spans:
        return None
    # OpenTelemetry takes time and memory to load: only where it is used.
    from nereid.observability.otlp import OtlpTracer  # noqa: PLC0415

    return OtlpTracer(config, service, instance)
