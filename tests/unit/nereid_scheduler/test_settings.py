"""The scheduler's flags."""

from pathlib import Path

import pytest

from nereid.config.settings_reader import read_settings, settings_argv
from nereid_scheduler.core.resources import ResourceLimit
from nereid_scheduler.settings import Settings


def settings(*argv: str) -> Settings:
    return read_settings(Settings, argv, {}, "scheduler")


def test_tritons_names(tmp_path: Path) -> None:
    got = settings(
        f"--model-store={tmp_path}",
        "--strict-readiness=false",
        "--backend-config=default-max-batch-size=2",
        "--backend-config=,shm-region-prefix-name=x",
        "--backend-config=onnxruntime,default-max-batch-size=8",
        "--backend-config=python,shm-region-prefix-name=a=b",
        "--disable-auto-complete-config",
        "--exit-on-error=true",
        "--rate-limit=Execution_Count",
        "--rate-limit-resource=R:4:-1",
        "--rate-limit-resource=G:2",
    )
    assert got.rate_limit == "execution_count"
    assert got.rate_limit_resource == (ResourceLimit("R", 4), ResourceLimit("G", 2))
    assert got.model_repository == (str(tmp_path),)
    assert not got.strict_readiness
    assert got.disable_auto_complete_config
    assert got.backend_settings("onnxruntime") == {
        "default-max-batch-size": "8",
        "shm-region-prefix-name": "x",
    }
    assert got.backend_settings("python") == {
        "default-max-batch-size": "2",
        "shm-region-prefix-name": "a=b",
    }
    assert settings(*settings_argv(got)) == got


EXPLICIT = ("--model-repository=/", "--model-control-mode=explicit")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ((), "--model-repository is required"),
        (("--model-repository=/nowhere/at/all",), "there is no such directory"),
        (("--model-repository=/", "--model-control-mode=x"), "expected one of none, poll"),
        (("--model-repository=/", "--load-model=a"), "requires --model-control-mode=explicit"),
        ((*EXPLICIT, "--load-model=*", "--load-model=a"), "'*' must be the only one"),
        (("--model-repository=/", "--model-config-name=a/b"), "without slashes"),
        (("--model-repository=/", "--state-directory=/etc/hosts"), "is no directory"),
        (("--model-repository=/", "--state-directory=/usr"), "other user"),
        (("--model-repository=/", "--state-directory=/x", "--state-name=x"), "exclude each other"),
        (("--model-repository=/", "--state-name=a/b"), "expected at most 64 letters"),
        (("--model-repository=/", "--backend-config=x"), "expected backend,key=value"),
        (("--model-repository=/", "--scheduler-address=8003"), "expected host:port"),
        (("--model-repository=/", "--rate-limit=on"), "invalid argument for --rate-limit"),
        (("--model-repository=/", "--rate-limit-resource=R"), "option format is '<resource_name>"),
    ],
)
def test_errors_end_the_start_with_one_line(
    argv: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        settings(*argv)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
