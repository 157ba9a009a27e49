"""Rehearsals in virtual time, with the scheduler's real core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.autoscaling.plot import draw
from benchmarks.autoscaling.rehearsal import Outcome, Scaling, Targets, rehearse
from benchmarks.simulation.measure import in_virtual_time
from benchmarks.simulation.virtual_time import Clock

TARGETS = Targets(queue_time_us=100_000, busy_ratio=0.7, demand=4)
START_S = 30.0


def run(rate: Callable[[float], float], scaling: Scaling, until_s: float = 1500.0) -> Outcome:
    clock = Clock()
    # The scheduler measures queues by the process's own clock here, as it is imported already.
    work = rehearse(rate, until_s, scaling, start_s=START_S, execution_s=0.4)
    found = in_virtual_time(clock, work)
    assert isinstance(found, Outcome)
    return found


def one_burst(time_s: float) -> float:
    return 5.0 if 300 <= time_s < 600 else 0.5


def replicas_at(outcome: Outcome, time_s: float) -> int:
    return max(step.replicas for step in outcome.steps if step.time_s <= time_s < step.time_s + 15)


def test_a_burst_is_met_and_nothing_is_lost_when_it_is_over() -> None:
    outcome = run(one_burst, Scaling("x", TARGETS, 1, 6))
    assert not outcome.failures
    assert replicas_at(outcome, 290) == 1
    # 5 per second of 0.4 s each are 2 executors' work.
    assert replicas_at(outcome, 500) >= 3
    assert replicas_at(outcome, 1490) == 1
    waits = outcome.latencies_s
    assert len(waits) == pytest.approx(0.5 * 1200 + 5 * 300, rel=0.1)
    # The pods' start, and what it takes to see that they are needed.
    assert max(waits) < START_S + 60
    assert outcome.pod_s < 0.6 * 6 * 1500
    # Replicas go down by halves, and none while the burst lasts.
    downs = [
        (one.time_s, one.replicas - two.replicas)
        for one, two in pairwise(outcome.steps) if one.replicas > two.replicas
    ]  # fmt: skip
    assert downs
    assert min(at_s for at_s, _ in downs) > 600
    assert max(by for _, by in downs) <= 3


def test_from_zero_requests_wait_for_the_first_executor() -> None:
    def rate(time_s: float) -> float:
        return 1.0 if 600 <= time_s < 700 else 0.0

    outcome = run(rate, Scaling("x", TARGETS, 0, 4))
    assert not outcome.failures
    assert replicas_at(outcome, 590) == 0
    assert replicas_at(outcome, 650) >= 1
    assert replicas_at(outcome, 1490) == 0
    # A scrape, a poll, and the pod's start.
    assert START_S < max(outcome.latencies_s) < START_S + 35


def test_the_command_rehearses_a_recorded_load(tmp_path: Path) -> None:
    """In a process of its own, in which queue times are virtual as well."""
    recorded = tmp_path / "load.csv"
    recorded.write_text("0,0.5\n60,5\n240,0.5\n660,0\n")
    command = [sys.executable, "-m", "benchmarks.autoscaling"]
    command += [f"--recorded={recorded}", f"--output={tmp_path}", "--most=4", "--start-s=20"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    found = json.loads((tmp_path / "autoscaling.json").read_text())["recorded"]
    assert all(each["failures"] == 0 for each in found.values())
    fixed, by_queue_time, by_all, from_zero = found.values()
    assert fixed["changes"] == 0
    # Nothing but queue time could have started these.
    assert by_queue_time["most_replicas"] > 2
    assert fixed["p99_s"] < by_all["p99_s"]
    assert from_zero["pod_hours"] <= by_all["pod_hours"] + 0.01 < fixed["pod_hours"]
    assert (tmp_path / "autoscaling-recorded.svg").read_text() == draw(found)
