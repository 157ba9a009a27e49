"""OpenTelemetry's environment variables: what they mean, and that flags win over them."""

from __future__ import annotations

import pytest

from nereid.config.settings_reader import read_settings
from nereid.observability.otel_variables import ExportOptions, export_options, read_variables
from nereid.observability.trace_config import TraceConfig, TraceSettings, parse_trace_config

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
SAMPLER = "OTEL_TRACES_SAMPLER"


def config(environ: dict[str, str], *argv: str) -> TraceConfig:
    given = [f"--trace-config={text}" for text in argv]
    settings = read_settings(TraceSettings, given, environ, "example")
    return parse_trace_config(settings.trace_config)


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({ENDPOINT: "http://a:4318"}, "http://a:4318/v1/traces"),
        ({ENDPOINT: "https://a/base/"}, "https://a/base/v1/traces"),
        ({ENDPOINT: "http://a:4317"}, "http://a:4317"),
        ({ENDPOINT: "http://a:4317", PROTOCOL: "http/protobuf"}, "http://a:4317/v1/traces"),
        ({ENDPOINT: "http://a:99/x", PROTOCOL: "grpc"}, "http://a:99"),
        ({ENDPOINT: "a:4317"}, "https://a:4317"),
        ({ENDPOINT: "a:4317", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, "http://a:4317"),
        ({ENDPOINT: "http://a", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b/x"}, "http://b/x"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b/"}, "http://b/v1/traces"),
        ({PROTOCOL: "http/json"}, "http://localhost:4318/v1/traces"),
        (
            {PROTOCOL: "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            "http://localhost:4318/v1/traces",
        ),
        ({PROTOCOL: "grpc"}, "http://localhost:4317"),
        ({}, None),
    ],
)
def test_where_spans_go(environ: dict[str, str], url: str | None) -> None:
    assert config(environ).url == url
    assert config(environ, "opentelemetry,url=c:1").url == "http://c:1"


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({ENDPOINT: "http://a"}, True),
        ({SAMPLER: "always_on"}, True),
        ({SAMPLER: "parentbased_always_off"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({ENDPOINT: "http://a", SAMPLER: "always_off"}, False),
        ({ENDPOINT: "http://a", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({ENDPOINT: "http://a", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_SERVICE_NAME": "s", PROTOCOL: "grpc"}, False),
        ({}, False),
    ],
)
def test_what_switches_spans_on(environ: dict[str, str], on: bool) -> None:
    assert config(environ).on is config(environ).to_spans is on


@pytest.mark.parametrize(
    ("sampler", "argument", "rate", "parent_based"),
    [
        ("always_on", "", 1, False),
        ("parentbased_always_on", "", 1, True),
        ("traceidratio", "0.01", 100, False),
        ("parentbased_traceidratio", "0.5", 2, True),
        ("traceidratio", "0", 0, False),
        ("traceidratio", "1e-20", 0, False),
        ("traceidratio", "", 1, False),
        ("traceidratio", "2", 1, False),
        ("traceidratio", "x", 1, False),
    ],
)
def test_samplers(sampler: str, argument: str, rate: int, parent_based: bool) -> None:
    environ = {SAMPLER: sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    found = config(environ)
    assert (found.levels, found.rate, found.parent_based) == (("TIMESTAMPS",), rate, parent_based)
    assert config(environ, "rate=7").rate == 7
    assert config(environ, "level=OFF").levels == ()


def test_flags_win_and_other_attributes_remain() -> None:
    environ = {
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=a,team=b%2Cc, bad",
        "OTEL_SERVICE_NAME": "mine",
        "OTEL_BSP_MAX_QUEUE_SIZE": "9",
        "OTEL_BSP_SCHEDULE_DELAY": "8",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "no",
    }
    found = config(environ, "opentelemetry,resource=team=d", "opentelemetry,bsp_schedule_delay=3")
    assert dict(found.resource) == {"service.name": "mine", "team": "d"}
    assert (found.max_queue_size, found.schedule_delay_ms) == (9, 3)
    assert found.max_export_batch_size == 512
    assert len(read_variables(environ).ignored) == 2


def test_files_are_none_of_opentelemetrys() -> None:
    environ = {ENDPOINT: "http://a", SAMPLER: "always_on"}
    assert config(environ, "triton,file=/f") == TraceConfig(file="/f")
    assert not config(environ, "mode=triton").on
    disabled = environ | {"OTEL_SDK_DISABLED": "TRUE"}
    assert config(disabled, "triton,file=/f", "level=TIMESTAMPS").to_file
    assert not config(disabled, "mode=opentelemetry", "level=TIMESTAMPS").on


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (PROTOCOL, "carrier-pigeon"),
        (ENDPOINT, "ftp://a"),
        (ENDPOINT, "http://[a"),
        (SAMPLER, "xray"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
    ],
)
def test_invalid_variables_are_ignored_with_a_reason(name: str, text: str) -> None:
    (line,) = read_variables({name: text}).ignored
    assert line.startswith(f"{name}: ")
    assert config({name: text}) == TraceConfig()


def test_how_spans_are_sent() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20x, a = b",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca",
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": "/own",
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/c",
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/k",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }
    headers = (("authorization", "Bearer x"), ("a", "b"))
    assert export_options(environ) == (ExportOptions(headers, 2.5, "/own", "/c", "/k", True), [])
    wrong = {
        "OTEL_EXPORTER_OTLP_HEADERS": "secret, b=\u00fc,c=x%0ay",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "x",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "zip",
    }
    options, ignored = export_options(wrong)
    assert options == ExportOptions()
    assert len(ignored) == 5
    assert "secret" not in " ".join(ignored)
