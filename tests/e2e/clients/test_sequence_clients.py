"""NVIDIA's clients and perf_analyzer with sequences. As in the clients' own examples, two sequences
run beside each other, whose values are accumulated.
"""

import contextlib
import http.client
import json
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.mesh.nvidia_clients import FLAVOURS, connected
from tests.support.mesh.perf_analyzer import COUNTED, WINDOWS, analyze, needs_analyzer
from tests.support.models import accumulators

pytestmark = pytest.mark.slow

VALUES = [11, 7, 5, 3, 2, 0, 1]
SEQUENCES = [[0, *VALUES], [100, *(-value for value in VALUES)]]
# Models, and two ids for each.
IDS: list[tuple[str, tuple[int | str, int | str]]] = [
    ("simple_sequence", (1000, 1001)),
    ("simple_sequence", ("first", "second")),
    ("simple_dyna_sequence", (1000, 1001)),
    ("simple_string_dyna_sequence", ("1002", "1003")),
    ("python_dyna_sequence", (1000, 1001)),
    ("python_string_dyna_sequence", ("1002", "1003")),
]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("repository")
    for name in accumulators.NAMES:
        accumulators.save(root, name, "onnxruntime", "simple_")
        if name != "sequence":
            accumulators.save(root, name, "python", "python_")
    with running(root, tmp_path_factory.mktemp("mesh") / "log") as mesh:
        yield mesh


def expected(model: str, which: int | str, values: list[int]) -> list[int]:
    """The sums; strategy oldest adds the id to the last one."""
    sums: list[int] = np.cumsum(values).tolist()
    if "dyna" in model:
        sums[-1] += int(which)
    return sums


def steps(ids: tuple[int | str, int | str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Which sequence, its value and what an inference request says; the sequences in turn."""
    for step in range(len(SEQUENCES[0])):
        for sequence, values in enumerate(SEQUENCES):
            flags = {"sequence_start": step == 0, "sequence_end": step == len(values) - 1}
            more = {"request_id": f"{sequence}_{step}", "sequence_id": ids[sequence], **flags}
            yield sequence, values[step], more


def inputs(module: Any, value: int) -> list[Any]:
    tensor = module.InferInput("INPUT", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return [tensor]


def check(model: str, ids: tuple[int | str, int | str], sums: list[list[int]]) -> None:
    assert sums == [
        expected(model, which, values) for which, values in zip(ids, SEQUENCES, strict=True)
    ]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_synchronous_clients(mesh: Mesh, flavour: str) -> None:
    with connected(mesh, flavour) as client:
        for model, ids in IDS:
            sums: list[list[int]] = [[], []]
            for sequence, value, more in steps(ids):
                array = np.array([[value]], np.int32)
                result = client.infer(model, {"INPUT": array}, **more)
                sums[sequence].append(int(result.as_numpy("OUTPUT")[0, 0]))
            check(model, ids, sums)


def test_stream_client(mesh: Mesh) -> None:
    """Without waiting for responses between requests."""
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        for model, ids in IDS:
            results: queue.Queue[tuple[Any, Any]] = queue.Queue()
            client.start_stream(lambda result, error, put=results.put: put((result, error)))
            for _, value, more in steps(ids):
                client.async_stream_infer(model, inputs(tritonclient.grpc, value), **more)
            sums: list[list[int]] = [[], []]
            for _ in range(2 * len(SEQUENCES[0])):
                result, error = results.get(timeout=30)
                assert error is None
                sequence, _, step = result.get_response().id.partition("_")
                assert int(step) == len(sums[int(sequence)])
                sums[int(sequence)].append(int(result.as_numpy("OUTPUT")[0, 0]))
            client.stop_stream()
            check(model, ids, sums)


def post_from(mesh: Mesh, source: str, model: str, value: int, parameters: dict[str, Any]) -> int:
    """A request of a sequence from this address: its sum."""
    host, _, port = mesh.http.rpartition(":")
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}
    connection = http.client.HTTPConnection(host, int(port), 10, source_address=(source, 0))
    with contextlib.closing(connection):
        body = json.dumps({"inputs": [tensor], "parameters": parameters})
        connection.request("POST", f"/v2/models/{model}/infer", body)
        response = json.loads(connection.getresponse().read())
    sums: list[int] = response["outputs"][0]["data"]
    return sums[0]


def test_a_client_at_another_address_takes_turns_with_one_that_starts_many(mesh: Mesh) -> None:
    """The model has 8 slots. Their sequences are the same for both: an id has one sequence."""
    model, started, other = "simple_sequence", 200, "127.0.0.2"
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with (
        ThreadPoolExecutor() as pool,
        tritonclient.grpc.InferenceServerClient(mesh.grpc) as client,
        contextlib.ExitStack() as stack,
    ):
        client.start_stream(lambda result, error: results.put((result, error)))
        stack.callback(client.stop_stream, cancel_requests=True)
        for which in range(1, started + 1):
            client.async_stream_infer(
                model, inputs(tritonclient.grpc, 5), sequence_id=which, sequence_start=True
            )
        for _ in range(8):
            assert results.get(timeout=30)[1] is None
        until(lambda: pending(mesh, model) == started - 8, "all but 8 sequences wait")
        start = {"sequence_id": 5000, "sequence_start": True}
        one = pool.submit(post_from, mesh, other, model, 7, start)
        until(lambda: pending(mesh, model) == started - 7, "the other client's waits as well")
        for which in (1, 2):
            end = {"sequence_id": which, "sequence_end": True}
            assert post_from(mesh, other, model, 1, end) == 6
        assert one.result() == 7
    # Of those that waited the first has had a turn as well.
    for which in (*range(3, 10), 5000):
        post_from(mesh, other, model, 1, {"sequence_id": which, "sequence_end": True})
    until(lambda: not pending(mesh, model), "nothing waits")


def pending(mesh: Mesh, model: str) -> float:
    """How many of its requests wait."""
    name = f'nv_inference_pending_request_count{{model="{model}",version="1"}}'
    lines = [each for each in mesh.metrics().splitlines() if each.startswith(name)]
    return float(lines[0].split()[-1]) if lines else 0.0


_FEW = "--request-count=60 "
# Without "serial", a sequence's requests travel on several connections at a time, in no order.
_RATE = (
    f"--request-rate-range=200 --num-of-sequences=6 --serial-sequences {' '.join(WINDOWS)}"
    " --sequence-length=5 "
)
_COUNTED = f"{' '.join(COUNTED)} --concurrency-range=4 "
_STREAM = "--async --streaming "
_LENGTH = "--sequence-length=5 "
_IDS = "--sequence-id-range=100:150 --sequence-length-variation=50 "
_BOTH, _HTTP, _GRPC = ("http", "grpc"), ("http",), ("grpc",)
# Protocols and flags; {} is a file of inputs.
MODES = {
    "streams": (_GRPC, _COUNTED + _LENGTH + _STREAM),
    "asynchronous": (_BOTH, _COUNTED + _LENGTH + "--async"),
    "synchronous": (_BOTH, _COUNTED + _LENGTH + "--sync"),
    "ids": (_GRPC, _COUNTED + _LENGTH + _STREAM + _IDS),
    "a rate": (_BOTH, _RATE + "--async"),
    "a rate on streams": (_GRPC, _RATE + _STREAM),
    "a random rate": (_GRPC, _RATE + _STREAM + "--request-distribution=poisson"),
    "inputs": (_GRPC, _COUNTED + _STREAM + "--input-data={}"),
    "long inputs": (_GRPC, _COUNTED + _STREAM + "--sequence-length=10 --input-data={}"),
}
ROWS = [
    pytest.param(
        *("grpc", "simple_dyna_sequence", _FEW + _STREAM + _LENGTH + "--concurrency-range=20"),
        id="oldest-many on streams",
    ),
    pytest.param(*("http", "simple_sequence", _RATE + "--async " + _IDS), id="direct-a rate"),
    *(
        pytest.param(
            *(protocol, f"simple_{model}", flags),
            id=f"{model}-{protocol}-{name}",
            marks=pytest.mark.nightly,
        )
        for model in ("sequence", "dyna_sequence")
        for name, (protocols, flags) in MODES.items()
        for protocol in protocols
    ),
]


def counts(mesh: Mesh, model: str) -> tuple[int, int]:
    """Successes and failures so far."""
    _, body = mesh.get(f"/v2/models/{model}/stats")
    (stats,) = json.loads(body)["model_stats"]
    return tuple(stats["inference_stats"][kind]["count"] for kind in ("success", "fail"))


@needs_analyzer
@pytest.mark.parametrize(("protocol", "model", "flags"), ROWS)
def test_perf_analyzer(mesh: Mesh, tmp_path: Path, protocol: str, model: str, flags: str) -> None:
    data = [[{"INPUT": [1]}, {"INPUT": [2]}, {"INPUT": [3]}], [{"INPUT": [4]}, {"INPUT": [5]}]]
    file = tmp_path / "inputs.json"
    file.write_text(json.dumps({"data": data}))
    before = counts(mesh, model)
    analyze(mesh, protocol, model, *flags.format(file).split())
    after = counts(mesh, model)
    assert after[0] - before[0] >= 50
    assert after[1] == before[1]
