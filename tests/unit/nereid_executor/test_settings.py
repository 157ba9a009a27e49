"""An executor's flags and environment."""

from __future__ import annotations

import os

import pytest

from nereid.config.settings_reader import settings_argv
from nereid_executor import settings as settings_module
from nereid_executor.settings import read


def test_defaults() -> None:
    settings = read([], {})
    assert settings.scheduler_address == "127.0.0.1:8003"
    assert f"-{os.getpid()}-" in settings.own_name()
    assert settings.own_name() != settings.own_name()
    assert settings.select_gpus([0, 1]) == (0, 1)
    assert settings.local_path("/models/m/1") == "/models/m/1"


def test_flags_and_environment() -> None:
    settings = read(["--name=a", "--gpus", "2,0"], {"NEREID_EXIT_TIMEOUT_SECS": "3"})
    assert settings.own_name() == "a"
    assert settings.exit_timeout_secs == 3
    assert settings.select_gpus([0, 1, 2]) == (0, 2)
    assert read(["--gpus=none"], {}).select_gpus([0]) == ()


@pytest.mark.parametrize(("text", "millis"), [("500", 500), ("0.2", 1), ("2000.0", 2000), ("0", 0)])
def test_the_metrics_interval_may_be_written_as_for_triton(text: str, millis: int) -> None:
    assert read([f"--metrics-interval-ms={text}"], {}).metrics_interval_ms == millis


def test_the_longest_mapping_of_a_path_counts() -> None:
    settings = read(
        ["--model-repository-map=/models=/mnt/m", "--model-repository-map=/models/big=/fast"], {}
    )
    assert settings.local_path("/models/a/1") == "/mnt/m/a/1"
    assert settings.local_path("/models/big/1") == "/fast/1"
    assert settings.local_path("/modelsx/1") == "/modelsx/1"
    assert read(settings_argv(settings), {}) == settings


def test_every_error_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read(["--gpus=x", "--model-repository-map=/a", "--scheduler-address=q", "--what"], {})
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_the_environment_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert settings_module.visible_gpus() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert settings_module.visible_gpus() == "1"


def test_what_libraries_read_once_is_set_unless_the_user_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    # Set first, so that it is as it was afterwards.
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    settings_module.prepare_environment()
    assert os.environ["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
