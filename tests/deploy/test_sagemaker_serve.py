"""The command of SageMaker's containers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SERVE = Path(__file__).parents[2] / "deploy" / "sagemaker" / "serve"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ["--model-repository=/opt/ml/model", "--load-model=*"]),
        (
            {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "bert", "SAGEMAKER_MULTI_MODEL": "false"},
            ["--model-repository=/opt/ml/model", "--load-model=bert"],
        ),
        ({"SAGEMAKER_MULTI_MODEL": "true"}, ["--model-repository=/tmp/nereid-models"]),
    ],
    ids=["one model", "a default model", "multi-model"],
)
def test_flags(tmp_path: Path, environ: dict[str, str], expected: list[str]) -> None:
    nereid = tmp_path / "nereid"
    nereid.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    nereid.chmod(0o755)
    done = subprocess.run(
        [SERVE, "--log-verbose=1"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    command, *flags = done.stdout.splitlines()
    assert command == "serve"
    assert flags[:5] == [
        "--allow-sagemaker=true",
        "--allow-http=false",
        "--allow-grpc=false",
        "--allow-metrics=false",
        "--model-control-mode=explicit",
    ]
    assert flags[5:] == [*expected, "--log-verbose=1"]
