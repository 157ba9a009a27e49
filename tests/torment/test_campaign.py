"""Short campaigns: the contract holds, and the machinery itself works.

What a campaign asserts is what clients saw, never how long it took.
"""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torment.disruptions import KINDS
from tests.torment.hosts import WITH_PARENT

pytestmark = pytest.mark.slow

# A campaign ends by itself, on a busy machine later.
LIMIT_S = 1800


def torment(output: Path, *arguments: str) -> str:
    """Run a campaign; what it reports."""
    # If these tests are killed, so is the campaign, with all that it has started.
    argv = [*WITH_PARENT] if shutil.which(WITH_PARENT[0]) else []
    argv += [sys.executable, "-m", "tests.torment", f"--output={output}", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=subprocess.STDOUT, text=True) as campaign:
        try:
            printed, _ = campaign.communicate(timeout=LIMIT_S)
        finally:
            _end(campaign)
    assert campaign.returncode == 0, printed
    assert "The contract was kept." in printed
    return (output / "report.txt").read_text()


def _end(campaign: subprocess.Popen[str]) -> None:
    """It ends what it has started when it is interrupted."""
    campaign.send_signal(signal.SIGINT)
    try:
        campaign.wait(60)
    except subprocess.TimeoutExpired:
        campaign.kill()


def test_a_mesh_keeps_its_contract_through_kills_and_edits(tmp_path: Path) -> None:
    """An executor, a gateway and the scheduler are killed, and a model is edited meanwhile."""
    report = torment(
        tmp_path / "torment",
        "--seed=121",
        "--most=4",
        "--every=1",
        "--faults=kill-gateway,kill-scheduler,kill-executor,reload",
        "--shape=none",
        "--processes=1",
        "--clients=11",
        # On a machine that does much else a process may be silent for long.
        "--aftermath=600",
        "--flag=--mesh-silence-secs=20",
    )
    assert report.count(": from ") == 4


@pytest.mark.nightly
def test_a_mesh_keeps_its_contract_at_saturation(tmp_path: Path) -> None:
    """Hundreds of clients, some of which cancel or expire; no fault permits any other error."""
    report = torment(
        tmp_path / "torment",
        "--seed=3",
        "--requests=3000",
        "--faults=none",
        "--shape=saturation,bursts,mix,cancellations,deadlines",
        "--processes=1",
        "--flag=--mesh-silence-secs=20",
    )
    assert "saturation" in report or "bursts" in report


def test_closed_loops_lose_nothing_of_an_executor_that_is_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.torment.saturation", f"--output={tmp_path}"]
    argv += ["--seconds=4", "--clients=64", "--disrupt=executor", "--every=1"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "failed 0, wrong 0, ERROR lines 0, protocol breaches 0" in ended.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "disruptions", ["all", "kill", "stop", "roll,join", "partition,loss,delay", "clock,reload"]
)
def test_campaigns_of_some_minutes(tmp_path: Path, disruptions: str, seed: int) -> None:
    arguments = [f"--seed={seed}", f"--faults={disruptions}", "--minutes=8"]
    if "clock" in disruptions:
        # disruptions.APART has the reason.
        arguments.append("--flag=--mesh-silence-secs=20")
    report = torment(tmp_path / "torment", *arguments)
    assert any(kind in report for kind in KINDS)
