"""OpenTelemetry's own environment variables, which count where --trace-config has no setting.

Invalid values are logged and ignored, as OpenTelemetry requires.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TRACES: Final = "OTEL_EXPORTER_OTLP_TRACES_"
_ALL: Final = "OTEL_EXPORTER_OTLP_"
_DISABLED: Final = "OTEL_SDK_DISABLED"
_SAMPLER: Final = "OTEL_TRACES_SAMPLER"
_RATIO: Final = "OTEL_TRACES_SAMPLER_ARG"
_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"
_SERVICE: Final = "OTEL_SERVICE_NAME"
_BATCHES: Final = {
    "OTEL_BSP_MAX_QUEUE_SIZE": "bsp_max_queue_size",
    "OTEL_BSP_SCHEDULE_DELAY": "bsp_schedule_delay",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "bsp_max_export_batch_size",
}
_GRPC: Final = "grpc"
_HTTP: Final = ("http/protobuf", "http/json")
_DEFAULT_URLS: Final = {_GRPC: "http://localhost:4317", _HTTP[0]: "http://localhost:4318"}
_GRPC_PORT: Final = 4317
_TRACES_PATH: Final = "/v1/traces"
_MAX_RATE: Final = (1 << 32) - 1
_SAMPLERS: Final = ("always_on", "always_off", "traceidratio")
_PARENT_BASED: Final = "parentbased_"
_TIMEOUT_MS: Final = 10_000


class Variables(NamedTuple):
    """Settings of --trace-config, and one line per ignored variable with the reason."""

    texts: list[str]
    ignored: list[str]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options for sending spans. Certificates and the key are paths; empty means none."""

    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = _TIMEOUT_MS / 1e3
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""
    gzip: bool = False


def with_variables(environ: Mapping[str, str], given: Sequence[str]) -> list[str]:
    """Return the variables' --trace-config settings, then the given ones, which override them."""
    to_files = any(text.replace(" ", "").startswith("triton,file=") for text in given)
    if environ.get(_DISABLED, "").strip().lower() == "true":
        # Trace files are not part of OpenTelemetry and are still written.
        return [*given, "mode=triton", *([] if to_files else ["level=OFF"])] if given else []
    if to_files:
        return list(given)
    return [*read_variables(environ).texts, *given]


def read_variables(environ: Mapping[str, str]) -> Variables:
    """Return the settings from the variables; none if the exporter is not OTLP."""
    exporter = environ.get(_EXPORTER, "").strip()
    if exporter not in ("", "otlp"):
        return Variables([], [f"{_EXPORTER}: '{exporter}' is not supported; only otlp is"])
    texts: list[str] = []
    ignored: list[str] = []
    url = _url(environ, ignored)
    sampling = _sampling(environ, ignored)
    # A sampler (except always_off: None), an exporter or an endpoint turns traces on.
    named = bool(url and _of(environ, "ENDPOINT")[1])
    if sampling is not None and (sampling or exporter or named):
        texts.append("mode=opentelemetry")
    texts += [f"opentelemetry,url={url}"] if url else []
    texts += sampling or []
    texts += _resource(environ, ignored)
    for variable, setting in _BATCHES.items():
        text = environ.get(variable, "").strip()
        if number := _positive(text):
            texts.append(f"opentelemetry,{setting}={number}")
        elif text:
            ignored.append(f"{variable}: '{text}' is no whole number above 0")
    return Variables(texts, ignored)


def export_options(environ: Mapping[str, str]) -> tuple[ExportOptions, list[str]]:
    """Return the options for sending spans, and one line per ignored variable with the reason."""
    ignored: list[str] = []
    headers: list[tuple[str, str]] = []
    variable, text = _of(environ, "HEADERS")
    for pair in filter(None, map(str.strip, text.split(","))):
        name, equals, value = pair.partition("=")
        name, value = unquote(name).strip().lower(), unquote(value).strip()
        if equals and name and (name + value).isascii() and (name + value).isprintable():
            headers.append((name, value))
        else:
            # The header may hold a password, so it is not shown.
            ignored.append(f"{variable}: expected name=value, separated by commas")
    variable, text = _of(environ, "TIMEOUT")
    timeout_ms = _positive(text)
    if text and not timeout_ms:
        ignored.append(f"{variable}: '{text}' is no whole number of milliseconds")
    variable, compression = _of(environ, "COMPRESSION")
    if compression not in ("", "none", "gzip"):
        ignored.append(f"{variable}: '{compression}' is neither gzip nor none")
    options = ExportOptions(
        tuple(headers),
        (timeout_ms or _TIMEOUT_MS) / 1e3,
        _of(environ, "CERTIFICATE")[1],
        _of(environ, "CLIENT_CERTIFICATE")[1],
        _of(environ, "CLIENT_KEY")[1],
        gzip=compression == "gzip",
    )
    return options, ignored


def _positive(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _of(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    """Return name and text of a variable; variables for traces have priority."""
    for variable in (_TRACES + name, _ALL + name):
        if text := environ.get(variable, "").strip():
            return variable, text
    return _ALL + name, ""


def _url(environ: Mapping[str, str], ignored: list[str]) -> str:
    """Return the URL for opentelemetry,url=, or "". Only OTLP over HTTP has a path."""
    variable, protocol = _of(environ, "PROTOCOL")
    if protocol not in ("", _GRPC, *_HTTP):
        ignored.append(f"{variable}: '{protocol}' is neither {_GRPC} nor {_HTTP[0]}")
        protocol = ""
    protocol = _HTTP[0] if protocol in _HTTP else protocol
    variable, endpoint = _of(environ, "ENDPOINT")
    endpoint = endpoint or _DEFAULT_URLS.get(protocol, "")
    if not endpoint:
        return ""
    if "://" not in endpoint:
        insecure = _of(environ, "INSECURE")[1].lower() == "true"
        endpoint = f"{'http' if insecure else 'https'}://{endpoint}"
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        ignored.append(f"{variable}: '{endpoint}' is no http:// or https:// URL")
        return ""
    base = f"{parts.scheme}://{parts.netloc}"
    if protocol == _GRPC or (not protocol and port == _GRPC_PORT):
        return base
    path = parts.path.rstrip("/")
    # The general endpoint lacks the path for traces.
    return base + (path or _TRACES_PATH if variable.startswith(_TRACES) else path + _TRACES_PATH)


def _sampling(environ: Mapping[str, str], ignored: list[str]) -> list[str] | None:
    """Return the sampling settings; empty if no sampler is named, `None` to trace no request."""
    name = environ.get(_SAMPLER, "").strip()
    kind = name.removeprefix(_PARENT_BASED)
    if kind not in _SAMPLERS:
        if name:
            ignored.append(f"{_SAMPLER}: '{name}' is not supported")
        return []
    if kind == "always_off":
        return ["level=OFF"] if name != kind else None
    rate = 1
    if kind == "traceidratio" and (text := environ.get(_RATIO, "").strip()):
        try:
            ratio = float(text)
        except ValueError:
            ratio = -1.0
        if 0 <= ratio <= 1:
            rate = min(round(1 / ratio), _MAX_RATE) if ratio * _MAX_RATE > 1 else 0
        else:
            ignored.append(f"{_RATIO}: '{text}' is not from 0 to 1")
    parents = [] if name == kind else ["opentelemetry,parent_based=true"]
    return ["level=TIMESTAMPS", f"rate={rate}", *parents]


def _resource(environ: Mapping[str, str], ignored: list[str]) -> list[str]:
    attributes: dict[str, str] = {}
    for pair in filter(None, map(str.strip, environ.get(_RESOURCE, "").split(","))):
        key, equals, value = pair.partition("=")
        if equals and key.strip() and value.strip():
            attributes[unquote(key.strip())] = unquote(value.strip())
        else:
            ignored.append(f"{_RESOURCE}: '{pair}' is not key=value")
    if service := environ.get(_SERVICE, "").strip():
        attributes["service.name"] = service
    return [f"opentelemetry,resource={key}={value}" for key, value in attributes.items()]
