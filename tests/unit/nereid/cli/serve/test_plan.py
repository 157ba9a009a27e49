"""What `nereid serve` starts, by its plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nereid.services.executor.cores import usable_cores


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--executors=2"], [f"--cpu-cores={max(1, usable_cores() // 2)}"] * 2),
        (["--executors=2", "--cpu-cores=5"], ["--cpu-cores=5"] * 2),
    ],
    ids=["counted", "as asked"],
)
def test_executors_of_one_machine_share_its_cores(
    tmp_path: Path, flags: list[str], expected: list[str]
) -> None:
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    argv = [f"--model-repository={tmp_path}", "--gpus=none", *ports, *flags]
    done = subprocess.run(
        [sys.executable, "-m", "nereid.cli.serve.plan"],
        input=json.dumps([str(tmp_path), *argv]),
        capture_output=True,
        text=True,
        check=True,
    )
    executors = [
        child["argv"]
        for child in json.loads(done.stdout)["children"]
        if "nereid.services.executor" in child["argv"]
    ]
    found = [flag for argv in executors for flag in argv if flag.startswith("--cpu-cores")]
    assert found == expected
