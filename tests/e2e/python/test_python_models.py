"""model.py files through the whole mesh: what Triton's Python backend does with them, and more."""

import json
import os
import signal
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
    python_models.save(root, "concurrent", 'backend: "python"')
    python_models.save(root, "talk", python_models.TALK)
    python_models.save(root, "talk", python_models.TALK + python_models.LIMIT, "impatient")
    for name, source in {
        "no_class": "x = 1",
        "no_execute": "class TritonPythonModel:\n    pass",
        "bad_syntax": "class",
        "bad_start": "class TritonPythonModel:\n"
        "    def initialize(self, args):\n        raise OSError('no weights here')\n"
        "    def execute(self, requests):\n        pass",
        "dies_at_start": "import os\nos._exit(5)",
    }.items():
        (python_models.save(root, "talk", python_models.TALK, name) / "1" / "model.py").write_text(
            source
        )
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


def test_only_wanted_outputs_are_sent(mesh: Mesh) -> None:
    with tritonclient.http.InferenceServerClient(mesh.http) as client:
        inputs = []
        for datatype in ("FP32", "INT32"):
            array = np.ones((1, 2), "float32" if datatype == "FP32" else "int32")
            inputs.append(tritonclient.http.InferInput(f"IN_{datatype}", [1, 2], datatype))
            inputs[-1].set_data_from_numpy(array)
        wanted = [tritonclient.http.InferRequestedOutput("OUT_INT32")]
        result = client.infer("identity", inputs, outputs=wanted)
        assert [each["name"] for each in result.get_response()["outputs"]] == ["OUT_INT32"]


def test_what_is_completed_is_what_clients_see(mesh: Mesh) -> None:
    config = json.loads(mesh.get("/v2/models/identity/config")[1])
    assert config["max_batch_size"] == 8
    assert "dynamic_batching" in config
    assert len(config["input"]) == len(config["output"]) == 14
    assert config["backend"] == "python"


def test_requests_know_what_their_clients_said(mesh: Mesh) -> None:
    about = json.loads(
        say(
            mesh,
            "about",
            request_id="me",
            sequence_id=9,
            sequence_start=True,
            timeout=1234,
            outputs=[tritonclient.grpc.InferRequestedOutput("REPLY")],
            parameters={"text": "a", "number": 3, "truth": True},
            headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"},
        )
    )
    assert about == {
        "id": "me",
        "correlation_id": 9,
        "flags": 1,
        "timeout": 1234,
        "parameters": {"text": "a", "number": 3, "truth": True},
        "outputs": ["REPLY"],
        "cancelled": False,
        "trace": about["trace"],
    }
    assert json.loads(about["trace"])["traceparent"][3:35] == "ab" * 16


def test_initialize_knows_the_model(mesh: Mesh) -> None:
    args = json.loads(say(mesh, "args"))
    config = json.loads(args.pop("model_config"))
    assert config["name"] == "talk"
    assert config["input"][0]["data_type"] == "TYPE_STRING"
    repository = args.pop("model_repository")
    assert repository.endswith("/talk")
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "talk_0_0",
        "model_instance_device_id": "0",
        "model_version": "1",
        "model_name": "talk",
    }


PROCESS = "Failed to process the request(s) for model 'talk_0_0', message: "


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        ("error NOT_FOUND who knows", "NOT_FOUND", "who knows"),
        ("error INVALID_ARG wrong", "INVALID_ARGUMENT", "wrong"),
        ("error UNAVAILABLE later", "UNAVAILABLE", "later"),
        ("error CANCELLED off", "CANCELLED", "off"),
        ("error UNKNOWN ?", "UNKNOWN", "?"),
        (
            "return number",
            "INTERNAL",
            f"{PROCESS}Expected a list in the execute return, found type '<class 'int'>'.",
        ),
        # Triton never responds to this; it logs the text.
        (
            "reschedule later",
            "INTERNAL",
            (
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model "
                "is not configured to handle such a flag."
            ),
        ),
    ],
)
def test_failures_have_the_words_and_codes_of_triton(
    mesh: Mesh, command: str, status: str, text: str
) -> None:
    assert refusal(mesh, command) == (status, text)


def test_an_exception_is_reported_with_its_traceback(mesh: Mesh) -> None:
    status, text = refusal(mesh, "raise oh no")
    assert status == "INTERNAL"
    assert text.startswith(f"{PROCESS}ValueError: oh no\n\nAt:\n  /")
    assert [line.rpartition(" ")[2] for line in text.splitlines()[3:]] == ["do_raise", "execute"]
    # Once in the log as well, on one line.
    until(lambda: f"talk_0_0: {PROCESS}ValueError: oh no" in mesh.log.read_text(), "the line")


def test_a_response_has_parameters(mesh: Mesh) -> None:
    body = json.dumps(
        {"inputs": [{"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": ["parameters"]}]}
    )
    _, wire_response = mesh.get("/v2/models/talk/infer", "POST", body.encode())
    assert json.loads(wire_response)["parameters"] == {"word": "yes", "number": 3, "truth": True}


def test_a_response_is_sent_after_execute(mesh: Mesh) -> None:
    assert say(mesh, "send me later") == "me later"


def test_a_request_knows_when_its_client_has_gone(mesh: Mesh, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        tensor = tritonclient.grpc.InferInput("COMMAND", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([f"watch {begun}"], np.object_))
        call = client.async_infer("talk", [tensor], lambda result, error: None)
        until(begun.exists, "the model to begin")
        call.cancel()
    assert say(mesh, "watched") == "somebody went"


def test_requests_of_a_batch_run_side_by_side_in_a_coroutine(mesh: Mesh) -> None:
    def ask(number: int) -> int:
        with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
            tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[number]], np.int32))
            return int(client.infer("concurrent", [tensor]).as_numpy("OUT")[0, 0])

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(64))) == list(range(1, 65))


def test_metrics_of_a_model_are_on_the_page(mesh: Mesh) -> None:
    def count() -> float:
        lines = [line for line in mesh.metrics().splitlines() if line.startswith("talk_words{")]
        assert len(lines) <= 1
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0

    before = count()
    say(mesh, "echo a")
    until(lambda: count() == before + 1, "the metric to be told")
    assert "# HELP talk_words Words heard\n# TYPE talk_words counter\n" in mesh.metrics()


def test_a_request_that_cannot_be_rescheduled_is_logged(mesh: Mesh) -> None:
    refusal(mesh, "reschedule later")
    line = "Failed to release request: Request is released with TRITONSERVER_REQUEST_RELEASE_RESCH"
    until(lambda: line in mesh.log.read_text(), "the line")


def test_a_model_writes_to_the_log(mesh: Mesh) -> None:
    say(mesh, "log beware of the dog")
    until(lambda: "talk_0_0: beware of the dog" in mesh.log.read_text(), "the line")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("no_class", "has no class TritonPythonModel"),
        ("no_execute", "does not implement `execute` method."),
        ("bad_syntax", "SyntaxError: invalid syntax"),
        ("bad_start", "OSError: no weights here"),
        ("dies_at_start", "the worker of model 'dies_at_start' ended with exit code 5"),
    ],
)
def test_models_that_cannot_be_loaded_say_why(mesh: Mesh, model: str, reason: str) -> None:
    entry = mesh.index()[model]
    assert entry["state"] == "UNAVAILABLE"
    assert reason in entry["reason"]


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


def test_what_a_worker_held_goes_with_it(mesh: Mesh) -> None:
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(refusal, mesh, "hold it")
        pid = int(say(mesh, "pid"))
        until(lambda: say(mesh, "holds") == "1", "the request to be held")
        os.kill(pid, signal.SIGKILL)
        assert held.result() == ("INTERNAL", "Stub process 'talk_0_0' is not healthy.")
    assert int(say(mesh, "pid")) != pid


def test_a_batch_that_takes_too_long_is_ended(mesh: Mesh) -> None:
    status, text = refusal(mesh, "hang", "impatient")
    assert status == "INTERNAL"
    assert "within 3 s" in text
    assert say(mesh, "echo again", "impatient") == "again"
