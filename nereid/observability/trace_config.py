"""--trace-config: its settings, the parser for them, and the sampling rule that they describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from nereid.config.flags import Topic, boolean, flag, integer
from nereid.core.wire.messages import TraceRule
from nereid.observability.otel_variables import with_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_OFF: Final = "OFF"
TIMESTAMPS: Final = "TIMESTAMPS"
TENSORS: Final = "TENSORS"
LEVELS: Final = (TIMESTAMPS, TENSORS)
_OLDER_LEVELS: Final = {
    **dict.fromkeys(("MIN", "MAX", "TRUE", "ON"), TIMESTAMPS),
    "FALSE": _OFF,
}
FILE_MODE: Final = "triton"
SPAN_MODE: Final = "opentelemetry"
_MAX_RATE: Final = (1 << 32) - 1
_TRACES_PATH: Final = "/v1/traces"
# The usual port of receivers of OTLP over HTTP.
_HTTP_PORT: Final = ":4318"


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Settings of --trace-config. count and rate apply to requests that arrive unsampled."""

    rate: int = 1000
    # Some of LEVELS, in the order of LEVELS; empty means that traces are off.
    levels: tuple[str, ...] = ()
    count: int = -1
    # `None` if not given.
    mode: str | None = None
    file: str = ""
    log_frequency: int = 0
    # The URL has a path for OTLP over HTTP, and none for OTLP over gRPC.
    url: str | None = None
    # True if a request whose parent is not sampled is never traced.
    parent_based: bool = False
    resource: tuple[tuple[str, str], ...] = ()
    max_queue_size: int = 2048
    schedule_delay_ms: int = 5000
    max_export_batch_size: int = 512

    @property
    def over_http(self) -> bool:
        """True if spans are sent by OTLP over HTTP rather than gRPC."""
        return self.url is not None and "/" in self.url.partition("://")[2]

    @property
    def to_file(self) -> bool:
        """True if traces are written to files."""
        return bool(self.file) and self.mode in (None, FILE_MODE)

    @property
    def to_spans(self) -> bool:
        """True if spans are exported; without a level, only of requests that arrive sampled."""
        if self.to_file or self.mode == FILE_MODE:
            return False
        return bool(self.levels) or self.mode == SPAN_MODE

    @property
    def on(self) -> bool:
        """True if any request may be traced."""
        return self.to_file or self.to_spans

    @property
    def rule(self) -> TraceRule:
        """The rule for tracing requests that arrive unsampled."""
        return trace_rule(self.levels, self.rate, self.count, self.log_frequency)


def trace_rule(levels: Sequence[str], rate: int, count: int, log_frequency: int) -> TraceRule:
    """Return the sampling rule that the settings describe; without levels, nothing is traced."""
    tensors = TENSORS in levels
    times = TIMESTAMPS in levels or not tensors
    return TraceRule(bool(levels), rate, count, log_frequency, times, tensors)


def _level(text: str) -> str:
    level = _OLDER_LEVELS.get(text.upper(), text.upper())
    if level not in (_OFF, *LEVELS):
        raise ValueError(f"expected a level: {', '.join((_OFF, *LEVELS))}")
    return level


def _mode(text: str) -> str:
    mode = text.lower()
    if mode not in (FILE_MODE, SPAN_MODE):
        raise ValueError(f"expected mode={FILE_MODE} or mode={SPAN_MODE}")
    return mode


def _url(text: str) -> str:
    """Parse a URL; one with the usual HTTP port and no path gets the usual path."""
    scheme, colon, rest = text.partition("://")
    if not colon:
        scheme, rest = "http", text
    host, _, path = rest.partition("/")
    if scheme not in ("http", "https") or not host:
        raise ValueError(
            f"expected http://host:4317 for gRPC or http://host:4318{_TRACES_PATH} for HTTP,"
            " either also with https://"
        )
    if path:
        return f"{scheme}://{host}/{path}"
    return f"{scheme}://{host}{_TRACES_PATH if host.endswith(_HTTP_PORT) else ''}"


def _resource(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError("expected opentelemetry,resource=key=value")
    return key, value


_GENERAL: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "rate": ("rate", integer(0, _MAX_RATE)),
    "level": ("levels", _level),
    "count": ("count", integer(-1)),
    "mode": ("mode", _mode),
}
_FILE: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "file": ("file", str),
    "log-frequency": ("log_frequency", integer(0, _MAX_RATE)),
}
_EXPORT: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "url": ("url", _url),
    "resource": ("resource", _resource),
    "parent_based": ("parent_based", boolean),
    "bsp_max_queue_size": ("max_queue_size", integer(1)),
    "bsp_schedule_delay": ("schedule_delay_ms", integer(1)),
    "bsp_max_export_batch_size": ("max_export_batch_size", integer(1)),
}


def _setting(text: str) -> tuple[str, Any]:
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
    """Return the configuration of all flags; the last value of a setting counts.

    Resources and levels add up instead.
    """
    values: dict[str, Any] = {}
    resource: dict[str, str] = {}
    for text in texts:
        name, value = _setting(text)
        if name == "resource":
            resource[value[0]] = value[1]
        elif name == "levels":
            # Each flag adds one level; OFF removes all levels given before.
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
        merge=with_variables,
    )  # fmt: skip
