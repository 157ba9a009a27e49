"""model.py files through the whole mesh: what Triton's Python backend does with them, and more."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.support.mesh.commands import refusal, say
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import python_models

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(7)
ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "BOOL": np.array([[True, False, True]]),
    "BYTES": np.array([[b"", "é".encode(), b"\xff\x00 no text", b"x" * 70_000]], np.object_),
    "FP32": RNG.random((2, 5), np.float32),
    "FP64": np.array([[np.nan, np.inf, -0.0]]),
    "FP16": np.array([[1.5, -2.0]], np.float16),
    "INT64": np.array([[-(2**63), 2**63 - 1]]),
    "UINT64": np.array([[2**64 - 1]], np.uint64),
    **{
        name.upper(): np.array([[0, 1, np.iinfo(name).max]], name)
        for name in ("uint8", "uint16", "uint32", "int8", "int16", "int32")
    },
    # Nothing in it.
    "empty": np.zeros((1, 0), np.float32),
    # Past what processes hand each other inline.
    "large": RNG.random((1, 1 << 20), np.float32),
}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("repository")
    python_models.save(root, "identity")
    python_models.save(root, "talk", python_models.TALK)
    dies = python_models.save(root, "talk", python_models.TALK, "dies_at_start")
    (dies / "1" / "model.py").write_text("import os\nos._exit(5)")
    log = tmp_path_factory.mktemp("mesh") / "log"
    # What Triton's command lines have for its own memory means nothing here, and does no harm.
    flag = "--backend-config=python,shm-default-byte-size=1048576"
    with running(root, log, flag) as mesh:
        yield mesh


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("case", ARRAYS)
def test_every_datatype_comes_back_as_it_went(mesh: Mesh, protocol: str, case: str) -> None:
    module: Any = getattr(tritonclient, protocol)
    array = ARRAYS[case]
    datatype = case if case.isupper() else "FP32"
    with module.InferenceServerClient(getattr(mesh, protocol)) as client:
        tensor = module.InferInput(f"IN_{datatype}", list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        result = client.infer("identity", [tensor])
        back = result.as_numpy(f"OUT_{datatype}")
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_large_tensors_go_through_shared_memory_both_ways(mesh: Mesh) -> None:
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        tensor = tritonclient.grpc.InferInput("IN_FP32", [1, 1 << 20], "FP32")
        small = tritonclient.grpc.InferInput("IN_BYTES", [1, 2], "BYTES")
        small.set_data_from_numpy(np.array([[b"a", b""]], np.object_))
        # From the second response on the model writes where the gateway reads.
        for size in (1 << 20, 1 << 20, 1 << 20, 10, 1 << 21, 1 << 19):
            array = RNG.random((1, size), np.float32)
            tensor.set_shape([1, size])
            tensor.set_data_from_numpy(array)
            result = client.infer("identity", [small, tensor])
            np.testing.assert_array_equal(result.as_numpy("OUT_FP32"), array)
            assert result.as_numpy("OUT_BYTES").tolist() == [[b"a", b""]]


def test_inputs_that_a_model_keeps_do_not_change(mesh: Mesh) -> None:
    size = 1 << 18
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        command = tritonclient.grpc.InferInput("COMMAND", [1], "BYTES")
        blob = tritonclient.grpc.InferInput("BLOB", [size], "UINT8")
        for number in range(5):
            command.set_data_from_numpy(np.array(["keep"], np.object_))
            blob.set_data_from_numpy(np.full(size, number, np.uint8))
            client.infer("talk", [command, blob])
    kept = json.loads(say(mesh, "kept"))
    assert kept == [[size, number * size] for number in range(5)]


def test_bf16_comes_back_by_dlpack(mesh: Mesh) -> None:
    numbers = b"\xc0\x3f\x00\xc0\x00\x00"
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        tensor = tritonclient.grpc.InferInput("IN_BF16", [1, 3], "BF16")
        tensor._raw_content = numbers
        response = client.infer("identity", [tensor]).get_response()
    assert response.outputs[0].datatype == "BF16"
    assert list(response.raw_output_contents) == [numbers]


@pytest.mark.unconfined("its model writes to a folder of the test")
def test_a_request_knows_when_its_client_has_gone(mesh: Mesh, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        tensor = tritonclient.grpc.InferInput("COMMAND", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([f"watch {begun}"], np.object_))
        call = client.async_infer("talk", [tensor], lambda result, error: None)
        until(begun.exists, "the model to begin")
        call.cancel()
    assert say(mesh, "watched") == "somebody went"


def test_a_model_whose_worker_dies_at_the_start_says_so(mesh: Mesh) -> None:
    entry = mesh.index()["dies_at_start"]
    assert entry["state"] == "UNAVAILABLE"
    assert "the worker of model 'dies_at_start' ended with exit code 5" in entry["reason"]


@pytest.mark.parametrize("how", ["exit", "SIGKILL", "SIGSEGV"])
def test_a_worker_that_ends_takes_its_request_along_and_comes_back(mesh: Mesh, how: str) -> None:
    before = say(mesh, "pid")
    assert refusal(mesh, f"die {how}") == ("INTERNAL", "Stub process 'talk_0_0' is not healthy.")
    assert say(mesh, "pid") != before


@pytest.mark.parametrize(
    "text", ["\xff" * 8, "\0\0\0\0\x18\0\0\0", "\x10\0\0\0\x18\0\0\0" + "x" * 16]
)
def test_a_worker_that_talks_nonsense_is_ended(mesh: Mesh, text: str) -> None:
    before = say(mesh, "pid")
    assert refusal(mesh, f"babble {text}")[0] == "INTERNAL"
    assert say(mesh, "pid") != before


def test_each_request_completed_by_threads_gets_one_right_response(mesh: Mesh) -> None:
    def ask(client: int) -> None:
        for number in range(20):
            text = f"{client} {number} " + "x" * (100_000 if number % 5 == 0 else client)
            assert say(mesh, f"toss {text}") == text

    with ThreadPoolExecutor(32) as pool:
        for asked in [pool.submit(ask, client) for client in range(32)]:
            asked.result()
