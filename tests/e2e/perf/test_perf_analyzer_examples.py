"""perf_analyzer's documented command lines, typed with `nereid perf` in place of it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pytest

import nereid
from nereid.app.mesh import Mesh
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
_OK, _USAGE, _BOTTLENECK = 0, 2, 4
_Vector = Annotated[np.ndarray, nereid.Tensor("float32", 8)]
_Matrix = Annotated[np.ndarray, nereid.Tensor("int32", 4, 4)]


class Sums(NamedTuple):
    OUTPUT0: _Matrix
    OUTPUT1: _Matrix


def _same(x: _Vector) -> _Vector:
    return x


@nereid.model(batch=True)
def mymodel(
    IMAGE: Annotated[np.ndarray, nereid.Tensor("float32", 3, -1, -1)],  # noqa: N803
) -> Annotated[np.ndarray, nereid.Tensor("float32", 3)]:
    mean: np.ndarray = IMAGE.mean(axis=(2, 3))
    return mean


@nereid.model
def add_sub(INPUT0: _Matrix, INPUT1: _Matrix) -> Sums:  # noqa: N803
    return Sums(INPUT0 + INPUT1, INPUT0 - INPUT1)


@nereid.model
def shaped(
    INPUT: Annotated[np.ndarray, nereid.Tensor("int32", -1, -1)],  # noqa: N803
) -> Annotated[np.ndarray, nereid.Tensor("int32", -1, -1)]:
    return INPUT


@nereid.model
def model_name(x: _Vector) -> Iterator[_Vector]:
    for _ in range(10):
        yield x


MODELS = (
    *(nereid.model(name=name)(_same) for name in ("simple", "inception_graphdef")),
    nereid.model(name="resnet50_libtorch")(_same),
    *(mymodel, add_sub, shaped, model_name),
)


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with nereid.serve(*MODELS, flags=["--allow-client-shm=true"], wait=False) as mesh:
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
    assert done.returncode in {_OK, _BOTTLENECK}, printed
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
