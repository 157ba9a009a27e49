"""The gateway's flags."""

from __future__ import annotations

import pytest

from nereid_gateway.settings import GatewaySettings, read


def test_defaults_are_tritons() -> None:
    settings = read([], {})
    assert (settings.http_port, settings.grpc_port) == (8000, 8001)
    assert (settings.http_address, settings.grpc_address) == ("0.0.0.0", "0.0.0.0")
    assert (settings.allow_http, settings.allow_grpc) == (True, True)
    assert settings.http_max_input_size == 64 << 20
    assert settings.server_id == "triton"
    assert settings.exit_timeout_secs == 30
    assert settings.grpc_engine == "nereid"
    assert settings.tls("http") is None
    assert settings.tls("grpc") is None


def test_flags_and_environment() -> None:
    settings = read(
        ["--http-port=1", "--id", "mine", "--allow-grpc", "0", "--scheduler-address=unix:/s"],
        {"NEREID_HTTP_PORT": "2", "NEREID_GRPC_PORT": "3"},
    )
    assert settings == GatewaySettings(
        http_port=1, grpc_port=3, server_id="mine", allow_grpc=False, scheduler_address="unix:/s"
    )


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("grpc-keepalive-time", 1000),
        ("grpc-keepalive-timeout", 1000),
        ("grpc-keepalive-permit-without-calls", True),
        ("grpc-http2-max-pings-without-data", 0),
        ("grpc-http2-min-recv-ping-interval-without-data", 10),
        ("grpc-http2-max-ping-strikes", 0),
        ("grpc-max-connection-age", 1),
        ("grpc-max-connection-age-grace", 1),
        ("grpc-infer-response-compression-level", "high"),
        ("grpc-infer-thread-count", 4),
        ("grpc-infer-allocation-pool-size", 16),
        ("grpc-max-response-pool-size", 16),
        ("http-thread-count", 16),
    ],
)
def test_tritons_flags_are_taken(flag: str, value: object) -> None:
    settings = read([f"--{flag}", f"{int(value) if value is True else value}"], {})
    assert getattr(settings, flag.replace("-", "_")) == value


@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        (["--http-port=x", "--grpc-engine=y", "--nope=1"], 3),
        (["--allow-http=false", "--allow-grpc=false"], 1),
        (["--grpc-use-ssl=true"], 2),
        (["--grpc-infer-response-compression-level=most"], 1),
        (["--grpc-use-ssl-mutual=true"], 3),
        (["--http-use-ssl"], 2),
        (["--http-use-ssl-mutual", "--grpc-use-ssl=true", "--http-server-cert=/nope"], 4),
        (["--http-use-ssl", "--http-server-cert=/nope", "--http-server-key=/nope"], 1),
        (["--mesh-tls-cert=/nope"], 1),
        (["--mesh-tls-root=/nope"], 1),
        (["--grpc-use-ssl=1", "--grpc-server-cert=/nope", "--grpc-server-key=/nope"], 1),
    ],
)
def test_all_errors_are_printed_at_once(
    argv: list[str], lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        read(argv, {})
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == lines
