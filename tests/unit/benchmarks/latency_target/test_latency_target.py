"""The rehearsal of batching that holds a target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.latency_target.load import phases_of
from benchmarks.latency_target.plot import draw


@pytest.mark.slow
def test_the_target_is_held_with_no_less_goodput_than_fixed_settings(tmp_path: Path) -> None:
    """In a process of its own, in which all times are virtual."""
    command = [sys.executable, "-m", "benchmarks.latency_target", "--seconds=2"]
    command += [f"--output={tmp_path}", "--size=20", "--delay-us=10000"]
    # The best that an exhaustive search has found, and no bound.
    command += ["--max-queue-size=16", "--max-queue-size=0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    found = json.loads((tmp_path / "latency-target.json").read_text())
    assert (tmp_path / "latency-target.svg").read_text() == draw(found)
    held, fixed = found["target"]["phases"], found["best fixed setting"]["phases"]
    assert [*held] == [each.name for each in phases_of(2)]
    assert all(0 < each["worst_p99_ms"] <= 55 for each in held.values())
    assert found["best fixed setting"]["max_queue_size"] == 16
    totals = [sum(each["goodput"] for each in run.values()) for run in (held, fixed)]
    assert totals[0] >= totals[1]
    unreachable = found["unreachable"]
    assert unreachable["reachable"] is False
    assert unreachable["held_us"] > 11_000
