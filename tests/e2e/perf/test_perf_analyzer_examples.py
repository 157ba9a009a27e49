"""perf_analyzer's documented command lines, typed with `nereid perf` in place of it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nereid
from nereid.app.mesh import Mesh
from tests.e2e.perf import perf_analyzer_models
from tests.e2e.perf.perf_analyzer_examples import (
    ADD_SUB_DATA,
    EXAMPLES,
    INTERVALS,
    SHAPES_DATA,
    Example,
)

pytestmark = pytest.mark.slow

_COMMAND = (sys.executable, "-c", "from nereid.cli import main; main()", "perf")
# A short measurement, however unsteady the machine is. The last of equal flags counts.
_SHORT = ("-p", "300", "-s", "1000000", "-r", "3", "--metrics-interval=100")
_OK, _USAGE, _BOTTLENECK, _UNSTABLE = 0, 2, 4, 5


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with nereid.serve(
        *perf_analyzer_models.MODELS, flags=["--allow-client-shm=true"], wait=False
    ) as mesh:
        yield mesh


def _run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    for name, document in {"data.json": ADD_SUB_DATA, "shapes.json": SHAPES_DATA}.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "my_intervals.txt").write_text(INTERVALS)
    return subprocess.run(
        [*_COMMAND, *flags], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "example",
    [each for each in EXAMPLES if not each.refusal],
    ids=lambda each: each.flags,
)
def test_what_is_documented_is_measured(mesh: Mesh, example: Example, tmp_path: Path) -> None:
    flags = example.flags.split()
    url = mesh.grpc if "grpc" in flags else mesh.http
    server = ("-u", url, f"--metrics-url={mesh.metrics}/metrics")
    done = _run(tmp_path, *flags, *_SHORT, *server)
    printed = done.stdout + done.stderr
    assert done.returncode in {_OK, _BOTTLENECK, _UNSTABLE}, printed
    assert "Failed" not in printed
    assert "Throughput: " in printed
    for name, column in example.files:
        assert column in (tmp_path / name).read_text().partition("\n")[0]


@pytest.mark.parametrize(
    "example", [each for each in EXAMPLES if each.refusal], ids=lambda each: each.flags
)
def test_what_has_no_meaning_here_is_refused_with_the_reason(
    example: Example, tmp_path: Path
) -> None:
    done = _run(tmp_path, *example.flags.split())
    assert done.returncode == _USAGE
    assert example.refusal in done.stderr
    assert "unknown argument" not in done.stderr


def test_help_has_perf_analyzers_short_form(tmp_path: Path) -> None:
    assert _run(tmp_path, "-m", "simple", "-?").stdout.startswith("usage: nereid perf")
