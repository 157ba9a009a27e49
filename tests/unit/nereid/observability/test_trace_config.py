"""--trace-config in Triton's form, and what is wrong with it."""

import pytest

from nereid.config.settings_reader import read_settings, settings_argv
from nereid.core.wire.messages import TraceRule
from nereid.observability.trace_config import TraceConfig, TraceSettings, parse_trace_config
from nereid.observability.tracers import open_tracer

TRACE, SPAN = bytes(range(1, 17)), bytes(range(1, 9))
SAMPLED = b"\0" + TRACE + SPAN + b"\1"
UNSAMPLED = b"\0" + TRACE + SPAN + b"\2"


def test_defaults_trace_nothing() -> None:
    config = parse_trace_config(())
    assert config == TraceConfig()
    assert not config.on
    assert open_tracer(TraceSettings(), "gateway") is None


def test_tritons_form_is_understood() -> None:
    config = parse_trace_config(
        (
            "rate=5",
            "level=TENSORS",
            "level=TIMESTAMPS",
            "count=7",
            "mode=opentelemetry",
            "opentelemetry,url=collector:4317/",
            "opentelemetry,resource=service.name=mine",
            "opentelemetry,resource=a=b=c",
            "opentelemetry,bsp_max_queue_size=9",
            "opentelemetry,bsp_schedule_delay=8",
            "opentelemetry,bsp_max_export_batch_size=6",
        )
    )
    assert config == TraceConfig(
        rate=5,
        levels=("TIMESTAMPS", "TENSORS"),
        count=7,
        mode="opentelemetry",
        url="http://collector:4317",
        resource=(("service.name", "mine"), ("a", "b=c")),
        max_queue_size=9,
        schedule_delay_ms=8,
        max_export_batch_size=6,
    )
    assert config.on


@pytest.mark.parametrize(
    ("texts", "on"),
    [
        (("rate=1",), False),
        (("level=TIMESTAMPS",), True),
        (("level=TIMESTAMPS", "level=OFF"), False),
        (("level=OFF", "level=TIMESTAMPS"), True),
        (("mode=opentelemetry",), True),
        (("opentelemetry,url=https://a:1",), False),
        (("mode=triton", "level=TIMESTAMPS"), False),
        (("mode=OpenTelemetry", "level=false"), True),
        (("mode=TRITON", "level=on"), False),
        (("triton,file=f", "mode=opentelemetry"), True),
    ],
)
def test_level_or_mode_switch_it_on(texts: tuple[str, ...], on: bool) -> None:
    config = parse_trace_config(texts)
    assert config.on is config.to_spans is on
    assert not config.to_file


def test_the_name_of_a_file_switches_files_on() -> None:
    config = parse_trace_config(("triton,file=/f", "triton, log-frequency=3", "rate=2"))
    assert config == TraceConfig(rate=2, file="/f", log_frequency=3)
    assert config.on
    assert config.to_file
    # There are no spans: gateways write the file.
    assert (
        open_tracer(TraceSettings(trace_config=("triton,file=/f", "level=TENSORS")), "executor")
        is None
    )
    both = parse_trace_config(("level=TENSORS", "mode=triton", "triton,file=/f", "count=4"))
    assert both.to_file
    assert both.rule == TraceRule(
        on=True, rate=1000, limit=4, log_frequency=0, times=False, tensors=True
    )


@pytest.mark.parametrize(
    ("given", "url", "over_http"),
    [
        ("http://a:4317/", "http://a:4317", False),
        ("https://a", "https://a", False),
        ("a:4318", "http://a:4318/v1/traces", True),
        ("http://a:4318/v1/traces", "http://a:4318/v1/traces", True),
        ("https://a/otlp/traces", "https://a/otlp/traces", True),
    ],
)
def test_a_path_means_http(given: str, url: str, over_http: bool) -> None:
    config = parse_trace_config((f"opentelemetry,url={given}",))
    assert (config.url, config.over_http) == (url, over_http)


@pytest.mark.parametrize(
    ("argv", "config"),
    [
        (
            "--trace-file=/f --trace-level=TENSORS --trace-rate 3 --trace-count=7",
            TraceConfig(3, ("TENSORS",), 7, file="/f"),
        ),
        (
            "--trace-log-frequency=2 --trace-level=TENSORS --trace-level TIMESTAMPS",
            TraceConfig(levels=("TIMESTAMPS", "TENSORS"), log_frequency=2),
        ),
        ("--trace-level=MIN", TraceConfig(levels=("TIMESTAMPS",))),
        ("--trace-level=max", TraceConfig(levels=("TIMESTAMPS",))),
        (
            "--trace-config=rate=5 --trace-config triton,file=/g --trace-rate=3 --trace-file=/f",
            TraceConfig(5, file="/g"),
        ),
    ],
)
def test_deprecated_flags_mean_the_same(argv: str, config: TraceConfig) -> None:
    settings = read_settings(TraceSettings, argv.split(), {}, "example")
    assert parse_trace_config(settings.trace_config) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rate", "expected setting=value"),
        ("rate=x", "whole number"),
        ("rate=-1", "from 0 to 4294967295"),
        ("count=-2", "at least -1"),
        ("level=LOUD", "OFF, TIMESTAMPS, TENSORS"),
        ("mode=jaeger", "expected mode=triton or mode=opentelemetry"),
        ("triton,url=http://a:1", "unknown setting 'url', there are file, log-frequency"),
        ("triton,log-frequency=-1", "from 0 to 4294967295"),
        ("speed=1", "unknown setting 'speed'"),
        ("opentelemetry,rate=1", "unknown setting 'rate'"),
        ("opentelemetry,url=ftp://collector", "expected http://"),
        ("opentelemetry,url=", "expected http://"),
        ("opentelemetry,resource=x", "resource=key=value"),
        ("opentelemetry,bsp_max_queue_size=0", "at least 1"),
    ],
)
def test_errors_are_reported_with_the_flag(
    text: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings(TraceSettings, [f"--trace-config={text}"], {}, "service")
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith(f"service: --trace-config: '{text}': ")
    assert expected in line


def test_settings_survive_a_command_line_and_the_environment() -> None:
    settings = TraceSettings(trace_config=("rate=1", "opentelemetry,resource=a=b"))
    assert read_settings(TraceSettings, settings_argv(settings), {}, "service") == settings
    given = {"NEREID_TRACE_CONFIG": "rate=1;opentelemetry,resource=a=b"}
    assert read_settings(TraceSettings, [], given, "service") == settings
