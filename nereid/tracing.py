"""Traces: --trace-config, which requests are traced, and the spans that services tell of them.

A trace context is 26 bytes: version, trace id (16), span id (8), flags. It travels with a request
whether or not anyone traces. Spans are made after the fact, from times taken anyway, and only for
requests whose context is sampled. How spans leave the process is nereid.otlp's business, which is
loaded only where tracing is on. Knows no service.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from nereid.flags import flag, integer
from nereid.messages import TraceRule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

CONTEXT_BYTES: Final = 26
_VERSION: Final = b"\x00"
_SAMPLED: Final = b"\x01"
_LEVELS: Final = ("OFF", "TIMESTAMPS", "TENSORS")
_LARGEST_RATE: Final = (1 << 32) - 1
# Readings of two clocks belong together when they were taken within this time.
_CLOCK_ERROR_NS: Final = 20_000
_CLOCK_TRIES: Final = 5
_PATHS: Final = ("", "/")


# ---- contexts


def is_sampled(context: bytes) -> bool:
    """Whether the request with this context is to be traced; no context: no."""
    return len(context) == CONTEXT_BYTES and bool(context[25] & 1)


def child_of(context: bytes) -> bytes:
    """The context of a new, sampled span below this one; below none, of a new trace's root."""
    trace_id = context[1:17] if len(context) == CONTEXT_BYTES else secrets.token_bytes(16)
    return _VERSION + trace_id + secrets.token_bytes(8) + _SAMPLED


def epoch_offset_ns() -> int:
    """What makes a monotonic time one since 1970: taken for each trace, since clocks are set."""
    offset_ns = 0
    for _ in range(_CLOCK_TRIES):
        before_ns = time.monotonic_ns()
        now_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        offset_ns = now_ns - (before_ns + after_ns) // 2
        if after_ns - before_ns < _CLOCK_ERROR_NS:
            break
        # Another process had the processor in between: spans would not fit into each other.
    return offset_ns


# ---- spans

Attribute = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took a while. Times are nanoseconds since 1970; links are contexts."""

    name: str
    context: bytes
    parent: bytes
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    links: Sequence[bytes] = ()
    # Name and time.
    events: Sequence[tuple[str, int]] = ()
    # What went wrong; None: nothing.
    error: str | None = None
    # A request from outside is served here.
    serves: bool = False


class Tracer(Protocol):
    """Takes a service's spans; never blocks, never raises."""

    def record(self, *spans: Span) -> None:
        """Take finished spans."""

    def close(self) -> None:
        """Send what is left, within a bounded time; call off the event loop."""


# ---- settings


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """What --trace-config says. count and rate concern requests that nobody asked to trace."""

    rate: int = 1000
    level: str = "OFF"
    count: int = -1
    # None: not given.
    mode: str | None = None
    url: str | None = None
    resource: tuple[tuple[str, str], ...] = ()
    max_queue_size: int = 2048
    schedule_delay_ms: int = 5000
    max_export_batch_size: int = 512

    @property
    def on(self) -> bool:
        """Whether any request may be traced; without a level, only those that arrive sampled."""
        return self.level != "OFF" or self.mode is not None

    @property
    def rule(self) -> TraceRule:
        """Which requests are traced that nobody asked to trace."""
        return TraceRule(self.level != "OFF", self.rate, self.count)


def _level(text: str) -> str:
    if text not in _LEVELS:
        raise ValueError(f"expected a level: {', '.join(_LEVELS)}")
    return text


def _mode(text: str) -> str:
    if text == "triton":
        raise ValueError("traces in a file (mode triton) are not offered yet, only opentelemetry")
    if text != "opentelemetry":
        raise ValueError("expected mode=opentelemetry")
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
    "level": ("level", _level),
    "count": ("count", integer(-1)),
    "mode": ("mode", _mode),
}
_EXPORT: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "url": ("url", _url),
    "resource": ("resource", _resource),
    "bsp_max_queue_size": ("max_queue_size", integer(1)),
    "bsp_schedule_delay": ("schedule_delay_ms", integer(1)),
    "bsp_max_export_batch_size": ("max_export_batch_size", integer(1)),
}


def _setting(text: str) -> tuple[str, Any]:
    """The field of TraceConfig that one --trace-config is about, and its value."""
    key, equals, value = text.partition("=")
    mode, comma, option = (part.strip() for part in key.partition(","))
    if not equals:
        raise ValueError("expected setting=value or opentelemetry,setting=value")
    if comma and mode != "opentelemetry":
        _mode(mode)
    table, name = (_EXPORT, option) if comma else (_GENERAL, mode)
    if name not in table:
        raise ValueError(f"unknown setting '{name}', there are {', '.join(table)}")
    where, parse = table[name]
    return where, parse(value.strip())


def _checked(text: str) -> str:
    _setting(text)
    return text


def parse_trace_config(texts: Sequence[str]) -> TraceConfig:
    """All --trace-config flags together; the last of each setting counts, resources gather."""
    values: dict[str, Any] = {}
    resource: dict[str, str] = {}
    for text in texts:
        name, value = _setting(text)
        if name == "resource":
            resource[value[0]] = value[1]
        elif name == "level" and value == "OFF":
            values[name] = value
        elif name == "level":
            # Several levels may be given; TENSORS shows what TIMESTAMPS does, and more.
            values[name] = value if values.get(name) != "TENSORS" else "TENSORS"
        else:
            values[name] = value
    return TraceConfig(**values, resource=tuple(resource.items()))


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """The flag that every service's settings have for traces."""

    trace_config: tuple[str, ...] = flag(
        (), "setting=value (rate, level, count, mode) or opentelemetry,setting=value (url,"
        " resource, bsp_...); may be given several times", _checked, repeated=True,
    )  # fmt: skip


# ---- sampling


class Sampler:
    """Which requests a gateway traces: those that arrive sampled, and every rate-th while count
    lasts, as Triton does.
    """

    def __init__(self, rule: TraceRule) -> None:
        self._left = rule.limit if rule.on and rule.rate else 0
        self._rate = rule.rate
        self._seen = 0

    def wants(self, context: bytes) -> bool:
        """Decide on one request with this incoming context."""
        if context and is_sampled(context):
            return True
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
    """A service's tracer, told from its like by instance. None: tracing is off, at no cost."""
    config = parse_trace_config(settings.trace_config)
    if not config.on:
        return None
    # OpenTelemetry takes a while to load and some memory: only where it is used.
    from nereid.otlp import OtlpTracer  # noqa: PLC0415

    return OtlpTracer(config, service, instance)
