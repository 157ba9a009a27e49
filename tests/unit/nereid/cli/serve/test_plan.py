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


def planned(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    argv = [f"--model-repository={tmp_path}", "--gpus=none", *ports, *flags]
    return subprocess.run(
        [sys.executable, "-m", "nereid.cli.serve.plan"],
        input=json.dumps([str(tmp_path), *argv]),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], ["--malloc-arenas=0"]),
        (["--lazy-loading", "--model-memory-budget=1GiB"], ["--malloc-arenas=2"]),
        (
            ["--lazy-loading", "--model-memory-budget=1GiB", "--malloc-arenas=9"],
            ["--malloc-arenas=9"],
        ),
    ],
    ids=["models stay", "models make way", "as asked"],
)
def test_executors_whose_models_make_way_have_few_arenas(
    tmp_path: Path, flags: list[str], expected: list[str]
) -> None:
    done = planned(tmp_path, "--executors=1", *flags)
    (executor,) = (
        child["argv"]
        for child in json.loads(done.stdout)["children"]
        if "nereid.services.executor" in child["argv"]
    )
    assert [flag for flag in executor if flag.startswith("--malloc-arenas")] == expected


def test_several_schedulers_know_each_other_and_everybody_knows_them(tmp_path: Path) -> None:
    outside = ["--scheduler-address=127.0.0.1:7001", "--scheduler-address=127.0.0.1:7002"]
    done = planned(tmp_path, "--schedulers=2", "--cache-config=local,size=1048576", *outside)
    children = {each["name"]: each for each in json.loads(done.stdout)["children"]}
    addresses = [f"unix:{tmp_path}/scheduler-{number}.sock" for number in (0, 1)]
    for number in (0, 1):
        child = children[f"nereid.services.scheduler {number}"]
        assert child["stage"] == 1
        own = [each for each in child["argv"] if each.startswith("--scheduler-address=")]
        assert own == [
            f"--scheduler-address={addresses[number]}",
            f"--scheduler-address=127.0.0.1:700{number + 1}",
        ]
        assert f"--scheduler-name=scheduler-{number}" in child["argv"]
        assert f"--scheduler-peers={','.join(addresses)}" in child["argv"]
        assert f"--cache-address=unix:{tmp_path}/cache.sock" in child["argv"]
    for name in ("nereid.services.gateway 0", "nereid.services.executor 0"):
        assert f"--scheduler-address={','.join(addresses)}" in children[name]["argv"]


def test_what_several_schedulers_cannot_have_is_refused(tmp_path: Path) -> None:
    flags = "--join=scheduler", "--scheduler-address=127.0.0.1:7001", "--scheduler-name=mine"
    done = planned(tmp_path, "--schedulers=2", *flags)
    assert done.returncode == 2
    for text in ("--join=scheduler: one process", "--scheduler-address: given 1 times", "-peers"):
        assert text in done.stderr
