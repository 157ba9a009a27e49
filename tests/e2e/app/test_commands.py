"""`nereid run`, `nereid new` and the fixtures of the pytest plugin."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import nereid
from tests.support.mesh.mesh import free_port, until

pytestmark = pytest.mark.slow

NEREID = [sys.executable, "-m", "nereid"]
APP = """
import nereid
import helper

@nereid.model
def scaled(x: float) -> float:
    return x * helper.FACTOR

@nereid.model
def other(x: float) -> float:
    return x - 1
"""


BOUND = """
import numpy as np
from nereid.pytriton import Tensor, Triton, batch

@batch
def negative(data):
    return [data * np.array([[-1]], dtype=np.float32)]

with Triton() as triton:
    data = Tensor(name="data", dtype=np.float32, shape=(-1,))
    triton.bind("Linear", negative, [data], [Tensor(dtype=np.float32, shape=(-1,))])
    triton.serve()
"""


@contextmanager
def run(folder: Path, *arguments: str) -> Iterator[tuple[nereid.Client, Path]]:
    port, log = free_port(), folder / "log"
    flags = [f"--grpc-port={port}", "--http-port=0", "--metrics-port=0"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*NEREID, "run", *arguments, *flags], cwd=folder, stdout=output, stderr=output
        )
    client = nereid.Client(f"127.0.0.1:{port}")
    try:
        until(lambda: "A first request" in log.read_text(), "the greeting")
        yield client, log
    finally:
        client.close()
        process.send_signal(signal.SIGINT)
        process.wait(40)
    assert process.returncode == 0, log.read_text()


def change(path: Path, text: str, log: Path, line: str) -> None:
    before = log.read_text().count(line)
    new = path.with_name("new")
    new.write_text(text)
    # A change is seen by its time.
    os.utime(new, ns=(0, path.stat().st_mtime_ns + 10**9))
    new.rename(path)
    until(lambda: log.read_text().count(line) > before, line)


def test_run_reloads_what_changes(tmp_path: Path) -> None:
    app, helper = tmp_path / "app.py", tmp_path / "helper.py"
    app.write_text(APP)
    helper.write_text("FACTOR = 2\n")
    with run(tmp_path, "app.py", "--reload") as (client, log):
        assert client["scaled"](3.0) == 6
        change(helper, "FACTOR = 4\n", log, "'other' is reloaded")
        assert client["scaled"](3.0) == 12
        # Only the changed model of a file.
        scaled = log.read_text().count("'scaled' is reloaded")
        change(app, APP.replace("x - 1", "x - 2"), log, "'other' is reloaded")
        assert log.read_text().count("'scaled' is reloaded") == scaled
        assert client["other"](3.0) == 1
        change(app, APP.replace("x - 1", "x -"), log, "app.py:11: invalid syntax; the models stay")
        assert client["other"](3.0) == 1
        change(app, APP.replace("x: float", "x"), log, "annotate 'x'")
        assert client["other"](3.0) == 1
        change(
            app,
            APP + APP.partition("helper\n")[2].replace("def ", "def new_"),
            log,
            "'new_other' is reloaded",
        )
        assert client["new_other"](3.0) == 2
        change(app, APP, log, "'new_scaled' is unloaded")


def test_run_serves_what_a_file_for_pytriton_binds(tmp_path: Path) -> None:
    app = tmp_path / "server.py"
    app.write_text(BOUND)
    with run(tmp_path, "server.py", "--reload") as (client, log):
        x = np.ones((2, 3), "f4")
        assert client["Linear"](x).tolist() == [[-1.0] * 3] * 2
        change(app, BOUND.replace("-1]]", "-2]]"), log, "'Linear' is reloaded")
        assert client["Linear"](x).tolist() == [[-2.0] * 3] * 2


@pytest.mark.parametrize(
    ("kind", "served", "expected"),
    [
        ("--python", ["app.py"], [[2.0] * 4]),
        ("--onnx", ["models"], [[2.0] * 4]),
        ("--ensemble", ["app.py", "models"], [[np.float32(4 / 255)]]),
    ],
)
def test_a_new_model_runs_and_its_test_passes(
    tmp_path: Path, kind: str, served: list[str], expected: list[list[float]]
) -> None:
    subprocess.run([*NEREID, "new", "mine", kind], cwd=tmp_path, check=True, capture_output=True)
    with run(tmp_path / "mine", *served) as (client, _):
        np.testing.assert_array_equal(client["mine"](np.ones((1, 4), "float32")), expected)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio"],
        cwd=tmp_path / "mine",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_fixture_serves_the_models_of_a_test_file(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("FACTOR = 2\n")
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "test_app.py").write_text(
        "from app import scaled, other\n"
        "def test_one(nereid_mesh):\n    assert nereid_mesh.client['scaled'](3.0) == 6\n"
        "def test_two(nereid_mesh, serve_models):\n"
        "    assert nereid_mesh.client['other'](3.0) == 2\n"
        "    assert serve_models(scaled, other) is nereid_mesh\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    for arguments, text in {
        ("run", "empty.py"): "defines no model at its top level: decorate a function",
        ("run", "absent.py"): "absent.py does not exist",
        ("run", "absent"): "absent is no model: give a decorated function",
        ("new", "1st"): "has to be a name of Python",
        ("new", "empty.py"): "has to be a name of Python",
    }.items():
        done = subprocess.run(
            [*NEREID, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode in (1, 2)
        assert text in done.stderr
        assert len(done.stderr.splitlines()) == 1
