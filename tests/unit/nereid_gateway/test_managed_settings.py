"""The flags of managed ports, and the variables of the platforms."""

from __future__ import annotations

from pathlib import Path

import pytest

from nereid.config.settings_reader import read_settings, settings_argv
from nereid_gateway.settings import GatewaySettings, read
from nereid_scheduler.settings import Settings as SchedulerSettings


def test_both_are_off() -> None:
    settings = read([], {"AIP_HTTP_PORT": "5234", "SAGEMAKER_MULTI_MODEL": "true"})
    assert settings.managed_at == {}
    assert (settings.allow_http, settings.allow_grpc) == (True, True)


def test_vertex_ais_environment_turns_its_port_on_and_the_others_off() -> None:
    environ = {
        "AIP_MODE": "PREDICTION",
        "AIP_HTTP_PORT": "5234",
        "AIP_PREDICT_ROUTE": "/v1/predict",
        "AIP_HEALTH_ROUTE": "/v1/health",
    }
    settings = read([], environ)
    assert settings.managed_at == {"vertex-ai": "0.0.0.0:5234"}
    assert settings.vertex_ai_predict_route == "/v1/predict"
    assert settings.vertex_ai_health_route == "/v1/health"
    assert (settings.allow_http, settings.allow_grpc) == (False, False)
    # Flags and Nereid's own variables count more, and a child process sees no variable.
    given = read(["--allow-http=true"], environ | {"NEREID_VERTEX_AI_PORT": "5235"})
    assert given.allow_http
    assert given.vertex_ai_port == 5235
    assert read(settings_argv(given), environ | {"AIP_HTTP_PORT": "1"}) == given
    # As on Triton, without its port as well.
    assert not read(["--allow-vertex-ai=false", "--allow-grpc=true"], environ).allow_http


def test_another_mode_and_empty_variables_say_nothing() -> None:
    settings = read(["--allow-vertex-ai"], {"AIP_MODE": "TRAINING", "AIP_HTTP_PORT": ""})
    assert settings.allow_http
    assert settings.managed_at == {"vertex-ai": "0.0.0.0:8080"}
    assert settings.vertex_ai_predict_route == "/predict"
    assert settings.vertex_ai_health_route == "/health"


def test_sagemakers_environment() -> None:
    environ = {
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "bert",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate",
        "SAGEMAKER_TRITON_PING_MODE": "live",
        "SAGEMAKER_MULTI_MODEL": "true",
        "SAGEMAKER_BIND_TO_PORT": "8081",
        "SAGEMAKER_SAFE_PORT_RANGE": "8000-8090",
    }
    settings = read(["--allow-sagemaker=true"], environ)
    assert settings.sagemaker_safe_port_range == "8000-8090"
    assert settings.managed_at == {"sagemaker": "0.0.0.0:8081"}
    assert settings.sagemaker_default_model == "bert"
    assert settings.sagemaker_inference_type == "generate"
    assert settings.sagemaker_ping_mode == "live"
    assert settings.sagemaker_multi_model


def test_vertex_ais_storage_is_a_model_repository(tmp_path: Path) -> None:
    settings = read_settings(SchedulerSettings, [], {"AIP_STORAGE_URI": str(tmp_path)}, "scheduler")
    assert settings.model_repository == (str(tmp_path),)


def test_the_interface_is_the_http_ports() -> None:
    assert GatewaySettings(
        allow_sagemaker=True, allow_vertex_ai=True, vertex_ai_port=1, http_address="::1"
    ).managed_at == {"sagemaker": "[::1]:8080", "vertex-ai": "[::1]:1"}
    hidden = GatewaySettings(allow_sagemaker=True, http_address="unix:/run/http.sock")
    assert hidden.managed_at == {"sagemaker": "127.0.0.1:8080"}


def test_a_managed_port_is_enough() -> None:
    read(["--allow-http=false", "--allow-grpc=false", "--allow-sagemaker"], {})


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ("--sagemaker-safe-port-range=8081", "expected FIRST-LAST"),
        ("--sagemaker-safe-port-range=9-8", "in this order"),
        ("--sagemaker-safe-port-range=1-70000", "up to 65535"),
        ("--sagemaker-inference-type=train", "expected one of infer, generate, generate_stream"),
        ("--sagemaker-ping-mode=up", "expected one of ready, live"),
        ("--sagemaker-thread-count=0", "at least 1"),
        ("--vertex-ai-predict-route=predict", "begins with a slash"),
        ("--vertex-ai-health-route=/a?b", "begins with a slash"),
        ("--allow-vertex-ai --vertex-ai-health-route=/predict", "are the same"),
        (
            "--allow-sagemaker --sagemaker-safe-port-range=8001-8002",
            "--http-port: port 8000 is not in --sagemaker-safe-port-range=8001-8002",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    argv: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(argv.split(), {})
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line


def test_the_safe_range_is_for_what_is_served_beside_sagemakers_routes() -> None:
    flags = ["--allow-sagemaker", "--sagemaker-safe-port-range=8001-8002", "--allow-http=false"]
    read(flags, {})
    read([*flags[1:2]], {})
