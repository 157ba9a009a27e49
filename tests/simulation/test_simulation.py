"""Meshes in virtual time, by a fixed set of seeds, in processes whose clocks they set."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.simulation.bugs import NAMES


def simulate(*arguments: str) -> list[dict[str, Any]]:
    """The outcomes."""
    command = [sys.executable, "-m", "tests.simulation", "--json", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_seeds_find_nothing() -> None:
    outcomes = simulate("--seed", "1", "--seeds", "8", "--minutes", "0.2")
    assert {each["seed"]: each["violations"] for each in outcomes if each["violations"]} == {}
    assert all(each["ends"]["success"] > 1000 for each in outcomes)
    # They have seen what they are for.
    events = [event for each in outcomes for event in (*each["events"], *each["disruptions"])]
    assert {"given back", "skipped", "kill-executor", "crash-worker", "break-join"} <= {*events}


@pytest.mark.slow
def test_a_seed_gives_the_same_history_again() -> None:
    (first,), (again,) = (simulate("--seed", "7", "--minutes", "0.2") for _ in range(2))
    (other,) = simulate("--seed", "8", "--minutes", "0.2")
    assert first["digest"] == again["digest"]
    assert first["digest"] != other["digest"]


@pytest.mark.slow
@pytest.mark.parametrize("bug", NAMES)
def test_a_bug_is_found(bug: str) -> None:
    outcomes = simulate("--seed", "1", "--seeds", "4", "--minutes", "0.3", "--bug", bug)
    assert any(each["violations"] for each in outcomes)
