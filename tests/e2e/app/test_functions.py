"""Decorated functions of each kind on a real mesh, and the repository that is saved of them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

import nereid
from nereid.app.mesh import Mesh, MeshError
from tests.e2e.app import functions
from tests.support.mesh.mesh import running, until

pytestmark = pytest.mark.slow

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with nereid.serve(*functions.MODELS, wait=False) as mesh:
        yield mesh


def call(mesh: Mesh, name: str, *args: Any, **kwargs: Any) -> Any:
    return mesh.client[name](*args, **kwargs)


def test_a_function_and_called_directly(mesh: Mesh) -> None:
    np.testing.assert_array_equal(call(mesh, "double", X), X * 2)
    np.testing.assert_array_equal(functions.double(X), X * 2)
    np.testing.assert_array_equal(call(mesh, "adouble", X), X * 2)
    np.testing.assert_array_equal(call(mesh, "plain", X), X.sum(axis=0))


def test_requests_that_wait_run_together(mesh: Mesh) -> None:
    one = np.zeros((1, 1), np.float32)
    with ThreadPoolExecutor(4) as threads:
        sizes = [int(each[0, 0]) for each in threads.map(lambda _: call(mesh, "rows", one), "1234")]
    assert max(sizes) > 1
    assert call(mesh, "rows", np.zeros((3, 1), np.float32)).tolist() == [[3]] * 3


def test_several_outputs_by_name(mesh: Mesh) -> None:
    found = call(mesh, "statistics", np.array([1.0, 2.0]))
    assert found["mean"].tolist() == [1.5]
    assert found["count"] == 2
    found = call(mesh, "bounds", X.ravel())
    assert [found["low"].tolist(), found["high"].tolist()] == [[0], [7]]


def test_strings_bytes_and_an_input_that_may_be_left_out(mesh: Mesh) -> None:
    found = call(mesh, "words", "é b")
    assert found["first"] == "é"
    assert found["all"].tolist() == ["é", "b"]
    assert found["raw"] == "é b".encode()
    assert call(mesh, "words", text="a,b", separator=",")["all"].tolist() == ["a", "b"]
    assert call(mesh, "upper", ["é", "b"]).tolist() == ["É", "B"]


def test_generators_stream(mesh: Mesh) -> None:
    assert list(call(mesh, "count", 3)) == [0, 1, 2]
    assert [int(each[0]) for each in call(mesh, "acount", 3)] == [0, 1, 2]
    stream = call(mesh, "count", 4)
    assert [next(stream) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(nereid.InferenceError, match="more than 3"):
        next(stream)


def test_a_stream_that_its_client_leaves_ends(mesh: Mesh) -> None:
    for name in ("count", "acount"):
        stream = call(mesh, name, 10**9)
        next(stream)
        stream.close()
        # A generator has its instance to itself: the next one begins when this one has ended.
        assert len(list(call(mesh, name, 2))) == 2


def test_coroutines_run_at_once(mesh: Mesh) -> None:
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda _: call(mesh, "meet", 3), "123")) == [3, 3, 3]


async def test_the_client_for_coroutines(mesh: Mesh) -> None:
    client = mesh.aclient
    assert list(await asyncio.gather(client["meet"](2), client["meet"](2))) == [2, 2]
    assert [each async for each in client["count"](2)] == [0, 1]
    with pytest.raises(TypeError, match="async for"):
        await client["count"](2)
    with pytest.raises(nereid.InferenceError, match=r"0\.5 is too much"):
        await client["fails"](0.5)
    await client.close()


def test_a_class_with_two_instances(mesh: Mesh) -> None:
    np.testing.assert_array_equal(call(mesh, "scaler", X[0]), X[0] * 3)


def test_errors_name_output_datatype_and_shape(mesh: Mesh) -> None:
    text = (
        "model 'wrong': output 'output' is declared as float32 [2, -1], the function returned"
        " float64 [2, 4]"
    )
    with pytest.raises(nereid.InferenceError) as caught:
        call(mesh, "wrong", X)
    assert text in str(caught.value)
    with pytest.raises(nereid.InferenceError, match=r"ValueError: 1\.5 is too much"):
        call(mesh, "fails", 1.5)


def test_an_exception_for_one_shape_fails_no_request_of_another(mesh: Mesh) -> None:
    with ThreadPoolExecutor(2) as threads:
        good, bad = (
            threads.submit(call, mesh, "ragged", np.ones((1, columns), "f4")) for columns in (2, 3)
        )
        assert good.result().tolist() == [[1, 1]]
        with pytest.raises(nereid.InferenceError, match="ValueError: three columns"):
            bad.result()


def test_the_client_refuses_wrong_inputs(mesh: Mesh) -> None:
    with pytest.raises(TypeError, match=r"write x.astype\('float32'\)"):
        call(mesh, "double", X.astype("float64"))
    with pytest.raises(TypeError, match="'y' is no input of double"):
        call(mesh, "double", y=X)
    with pytest.raises(TypeError, match="input 'x' is missing"):
        call(mesh, "double")
    with pytest.raises(nereid.InferenceError) as caught:
        call(mesh, "absent", X)
    assert caught.value.status == "NOT_FOUND"


def test_a_saved_repository_serves_elsewhere(mesh: Mesh, tmp_path: Path) -> None:
    root = mesh.save(tmp_path / "repository")
    with running(root, tmp_path / "log") as saved:
        tensor = tritonclient.http.InferInput("x", [2, 4], "FP32")
        tensor.set_data_from_numpy(X)
        with tritonclient.http.InferenceServerClient(saved.http) as client:
            np.testing.assert_array_equal(
                client.infer("double", [tensor]).as_numpy("output"), X * 2
            )
    assert (root / "double" / "1" / "application" / "functions.py").is_file()


def test_a_function_in_a_function_goes_by_cloudpickle() -> None:
    factor = 5

    @nereid.model
    def scaled(x: float) -> float:
        return x * factor

    with nereid.serve(scaled, wait=False) as mesh:
        assert mesh.client["scaled"](1.5) == 7.5


def test_close_is_called_and_nothing_is_left() -> None:
    lines: list[str] = []
    mesh = Mesh([functions.Scaler], on_line=lines.append)
    directory = mesh.repository.parent
    mesh.stop()
    assert any("the scaler is closed" in line for line in lines)
    assert not directory.exists()
    assert not mesh.is_running
    mesh.stop()


def test_a_model_that_does_not_load_is_an_error_that_says_why() -> None:
    @nereid.model
    class Broken:
        def __init__(self) -> None:
            raise OSError("no weights")

        def __call__(self, x: float) -> float:
            return x

    with pytest.raises(MeshError, match="no weights"):
        nereid.serve(Broken, wait=False)


SCRIPT = """
import sys
import nereid

@nereid.model
def half(x: float) -> float:
    return x / 2

mesh = nereid.serve(half, wait=False)
print(mesh._process._popen.pid, mesh.client["half"](3.0), flush=True)
sys.stdin.read()
"""


def test_the_mesh_ends_with_a_killed_process_and_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid, value = process.stdout.readline().split()
        assert value == "1.5"
        process.kill()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the mesh to end")


def test_serve_blocks_and_prints_a_first_request(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = SCRIPT.partition("mesh =")[0] + "nereid.serve(half, ports=(0, 0, 0))\n"
    script.write_text(text)
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "models/half/infer" in line:
                break
        os.kill(process.pid, signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_a_function_of_a_notebook_goes_by_cloudpickle() -> None:
    """The program comes from standard input: it has no file, as in a notebook or a REPL."""
    text = SCRIPT.partition("mesh =")[0] + (
        "with nereid.serve(half, wait=False) as mesh:\n    print(mesh.client['half'](3.0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-"], input=text, capture_output=True, text=True, check=False
    )
    assert done.stdout == "1.5\n", done.stderr
