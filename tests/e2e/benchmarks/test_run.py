"""The benchmark itself, with Nereid as its only peer: its checks of responses and counts pass."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures.samples import parse

ROOT = Path(__file__).parents[3]


@pytest.mark.nightly
@pytest.mark.skipif(not (shutil.which("h2load") and shutil.which("wrk")), reason="no h2load, wrk")
def test_every_cheap_model(tmp_path: Path) -> None:
    """The variant takes part beside the default, and the ratio of the two is printed."""
    arguments = ["--model", "mlp,python,ensemble,decoupled", "--seconds", "0.2", "--rounds", "1"]
    arguments += ["--nereid-variant", "split=--join none", "--concurrency", "4"]
    arguments += ["--only", "nereid", "--only", "nereid-split", "--only", "bare"]
    arguments += ["--models-dir", str(tmp_path), "--json", str(tmp_path / "figures.json")]
    # a process of its own: it changes how signals are handled
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "nereid-split / nereid" in ran.stdout
    samples, about = parse(json.loads((tmp_path / "figures.json").read_text()))
    assert about["nereid_flags"]["nereid-split"] == "--join none"
    protocols = {"mlp": 3, "python": 2, "ensemble": 2, "decoupled": 1}
    expected = 2 * sum(protocols.values()) + 1  # the bare loop of the perceptron
    assert len(samples) == expected
    assert all(sample.requests for rounds in samples.values() for sample in rounds)
