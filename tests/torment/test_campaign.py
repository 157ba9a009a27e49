"""Short campaigns: the contract holds, and the machinery itself works.

What a campaign asserts is what clients saw, never how long it took.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.torment.disruptions import KINDS

pytestmark = pytest.mark.slow

# A campaign ends by itself, on a busy machine later.
LIMIT_S = 1800


def torment(output: Path, *arguments: str) -> str:
    """Run a campaign; what it reports."""
    argv = [sys.executable, "-m", "tests.torment", f"--output={output}", *arguments]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert "The contract was kept." in ended.stdout
    return (output / "report.txt").read_text()


def test_a_mesh_keeps_its_contract_through_kills_and_edits(tmp_path: Path) -> None:
    """An executor, a gateway and the scheduler are killed, and a model is edited meanwhile."""
    report = torment(
        tmp_path / "torment",
        "--seed=121",
        "--most=5",
        "--every=1.5",
        "--faults=kill-gateway,kill-scheduler,kill-executor,reload",
        "--processes=1",
        "--clients=11",
        # On a machine that does much else a process may be silent for long.
        "--aftermath=600",
        "--flag=--mesh-keepalive-timeout-secs=60",
    )
    assert report.count(": from ") == 5


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "disruptions", ["all", "kill", "stop", "roll,join", "partition,loss,delay"]
)
def test_campaigns_of_some_minutes(tmp_path: Path, disruptions: str, seed: int) -> None:
    report = torment(
        tmp_path / "torment", f"--seed={seed}", f"--faults={disruptions}", "--minutes=8"
    )
    assert any(kind in report for kind in KINDS)
