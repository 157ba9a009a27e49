"""`nereid adopt` before the real Triton: over and back twice under load, without a failure.

NEREID_ADOPT_RESPONSES is the number of responses to compare, a few hundred by default. A large one
needs perf_analyzer in the PATH, which makes most of that load. With NEREID_TRITON_ONNX_BACKEND, see
triton.py, there are models in ONNX as well.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import helper, numpy_helper
from tritonclient.utils import shared_memory

from tests.conformance import row_models
from tests.conformance.python_repository import repository_for
from tests.conformance.row import SERVERS
from tests.conformance.triton import triton
from tests.conformance.triton.conftest import skipping
from tests.conformance.triton.record import NEREID_FLAGS
from tests.support.mesh.adopting import Adopting, adopting
from tests.support.mesh.mesh import running, until
from tests.support.models import accumulators, onnx_models

_ROUNDS = 2
_LOADS = 8
_RESPONSES = int(os.environ.get("NEREID_ADOPT_RESPONSES", "0"))
_PER_ROUND = 100_000
_CONCURRENCY = 16
_MAX_CLIENT_S = 3600
_LOOK_S = 30
# perf_analyzer starts its load, then asks for the first statistics. It fails, before a server alone
# as well, if the load has ended by then and the counts do not change any more.
_MIN_REQUESTS = 20 * _CONCURRENCY
# Those of perf_analyzer are below.
_SEQUENCE_IDS = count(10_000_000)
_CALLED = (
    "r = pb_utils.InferenceRequest(model_name='flat', requested_output_names=['Y'],"
    " inputs=[pb_utils.Tensor('X', np.array([1, 2], np.float32))]).exec()\n"
    "found = pb_utils.get_output_tensor_by_name(r, 'Y').as_numpy().tolist()"
)
_DATATYPES = {"f": "FP32", "i": "INT32", "O": "BYTES"}


_HTTP, _GRPC = "http", "grpc"


class _Bulk(NamedTuple):
    """Requests of perf_analyzer to a model, by both protocols at once. row: a request's inputs."""

    model: str
    row: Callable[[np.random.Generator], dict[str, list[Any]]]
    flags: tuple[str, ...] = ()
    protocols: tuple[str, ...] = (_GRPC, _HTTP)


def _floats(name: str, size: int) -> Callable[[np.random.Generator], dict[str, list[Any]]]:
    return lambda random: {name: random.random(size).round(4).tolist()}


def _integers(name: str, size: int) -> Callable[[np.random.Generator], dict[str, list[Any]]]:
    return lambda random: {name: random.integers(0, 1000, size).tolist()}


def _texts(random: np.random.Generator, size: int) -> list[str]:
    return ["ä" * int(number) for number in random.integers(0, 9, size)]


# Models that respond to a request each time by the same bytes.
_BULK = (
    *(
        _Bulk(model, _floats("X", 4), ("--shape=X:4",))
        for model in (
            *("double", "flat", "named", "wrapped", "chain", "diamond", "nested", "counting"),
        )
    ),
    # Without a version, perf_analyzer looks for one with new statistics at the old server, which
    # gets the copies of streams later.
    _Bulk("repeat", _floats("X", 3), ("--shape=X:3", "--streaming", "-x", "1"), (_GRPC,)),
    _Bulk("script", lambda _: {"CODE": [_CALLED]}),
    _Bulk(
        "strings",
        lambda random: {"S": _texts(random, 2), "KIND": ["reverse"]},
        ("--shape=S:2",),
    ),
)
# Asynchronous, it ends sequences at last without waiting for their requests in flight.
_SEQUENCES = ("--sync", "--sequence-length=8", "--sequence-length-variation=50")
_ONNX_BULK = (
    _Bulk("network", _floats("X", 16)),
    _Bulk(
        "add_sub", lambda random: _integers("INPUT0", 4)(random) | _integers("INPUT1", 4)(random)
    ),
    _Bulk("identity_fp32", _floats("INPUT0", 4), ("--shape=INPUT0:4",)),
    _Bulk("identity_bytes", lambda random: {"INPUT0": _texts(random, 3)}, ("--shape=INPUT0:3",)),
    _Bulk("batched", _integers("INPUT0", 5), ("--shape=INPUT0:5",)),
    _Bulk("labelled", _floats("INPUT0", 4)),
    _Bulk("fixed", _floats("INPUT0", 6)),
    _Bulk(
        "several",
        lambda random: {
            **_integers("A", 2)(random),
            "B": _texts(random, 3),
            **_floats("C", 2)(random),
        },
        ("--shape=A:2", "--shape=B:3"),
    ),
    *(
        _Bulk(model, _integers("INPUT", 1), _SEQUENCES)
        for model in ("sequence", "dyna_sequence", "python_sequence")
    ),
)


def _repository(root: Path) -> Path:
    """Write the Python models and ensembles of the protocol rows, and models in ONNX."""
    repository_for("python", root, "python")
    if triton.ONNX_BACKEND:
        wanted = {bulk.model for bulk in _ONNX_BULK}
        chosen = [model for model in row_models.models() if model.name in wanted]
        row_models.write_models(root, chosen, "onnxruntime")
        accumulators.save(root, "sequence", "python", prefix="python_")
        for name in ("sequence", "dyna_sequence"):
            # Triton 2.51 dies when it warms a model with implicit state.
            accumulators.save(root, name, "onnxruntime", with_warmup=False)
        _write_network(root / "network")
    return root


def _write_network(directory: Path) -> None:
    """Write a classifier of two layers, whose floats depend on the order of sums."""
    random = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array(random.normal(size=size).astype(np.float32), name)
        for name, size in (("w1", (16, 64)), ("b1", (64,)), ("w2", (64, 8)))
    ]
    nodes = [
        helper.make_node("Gemm", ["X", "w1", "b1"], ["hidden"]),
        helper.make_node("Tanh", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "w2"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["Y"], axis=-1),
    ]
    x, y = onnx_models.value("X", "FP32", ["n", 16]), onnx_models.value("Y", "FP32", ["n", 8])
    onnx_models.write(directory / "1", nodes, [x], [y], weights)
    (directory / "config.pbtxt").write_text(
        'backend: "onnxruntime"\nmax_batch_size: 16\ndynamic_batching { }\n'
    )


def _tensors(module: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    tensors = []
    for name, array in arrays.items():
        datatype = _DATATYPES[array.dtype.kind]
        tensors.append(module.InferInput(name, list(array.shape), datatype))
        tensors[-1].set_data_from_numpy(array)
    return tensors


def _inputs() -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """One request to each of the models; ensembles and models that call others among them."""
    x = np.random.default_rng().random((2, 4), np.float32)
    texts = np.array([["ä", ""]], np.object_)
    return {
        "double": {"X": x},
        "flat": {"X": x[0]},
        "add": {"A": x[0], "B": x[1]},
        "strings": {"S": texts, "KIND": np.array([["reverse"]], np.object_)},
        "chain": {"X": x},
        "diamond": {"X": x[0]},
        "nested": {"X": x[0]},
        "script": {"CODE": np.array([_CALLED], np.object_)},
        "scripts": {"CODE": np.array([["found = 1"]], np.object_)},
        "named": {"X": x[0]},
        "wrapped": {"X": x[0]},
        "counting": {"X": x[0]},
    }


def _unary(module: Any, address: str) -> Callable[[], None]:
    client = module.InferenceServerClient(address)

    def infer() -> None:
        for model, arrays in _inputs().items():
            client.infer(model, _tensors(module, arrays), request_id=model)

    return infer


def _stream(address: str) -> Callable[[], None]:
    def infer() -> None:
        client = tritonclient.grpc.InferenceServerClient(address)
        results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: results.put((result, error)))
        x = np.array([1, 2, 3], np.float32)
        client.async_stream_infer("repeat", _tensors(tritonclient.grpc, {"X": x}), request_id="s")
        for _ in x:
            assert results.get(timeout=60)[1] is None
        client.stop_stream()
        client.close()

    return infer


def _sequence(module: Any, address: str) -> Callable[[], None]:
    client = module.InferenceServerClient(address)

    def infer() -> None:
        for model in ("iterating", "iterating_oldest"):
            tensors = _tensors(module, {"X": np.array([[1, 0]], np.float32)})
            number = next(_SEQUENCE_IDS)
            flags = {"sequence_start": True, "sequence_end": True}
            client.infer(model, tensors, sequence_id=number, **flags)
        if triton.ONNX_BACKEND:
            number, total = next(_SEQUENCE_IDS), 0
            for step in range(4):
                total += step
                tensors = _tensors(module, {"INPUT": np.array([[step]], np.int32)})
                flags = {"sequence_start": step == 0, "sequence_end": step == 3}
                ending = number if step == 3 else 0
                result = client.infer("dyna_sequence", tensors, sequence_id=number, **flags)
                assert result.as_numpy("OUTPUT").tolist() == [[total + ending]]

    return infer


def _shared_memory(module: Any, address: str, name: str) -> Callable[[], None]:
    client = module.InferenceServerClient(address)
    x = np.arange(4, dtype=np.float32)
    regions = [shared_memory.create_shared_memory_region(f"{name}_{kind}", f"/{name}_{kind}", 16)
               for kind in ("in", "out")]  # fmt: skip
    shared_memory.set_shared_memory_region(regions[0], [x])
    for kind in ("in", "out"):
        client.register_system_shared_memory(f"{name}_{kind}", f"/{name}_{kind}", 16)

    def infer() -> None:
        tensor = module.InferInput("X", [4], "FP32")
        tensor.set_shared_memory(f"{name}_in", 16)
        output = module.InferRequestedOutput("Y")
        output.set_shared_memory(f"{name}_out", 16)
        client.infer("flat", [tensor], outputs=[output])
        found = shared_memory.get_contents_as_numpy(regions[1], np.float32, [4])
        assert found.tolist() == (2 * x).tolist()

    def end() -> None:
        for kind, region in zip(("in", "out"), regions, strict=True):
            client.unregister_system_shared_memory(f"{name}_{kind}")
            shared_memory.destroy_shared_memory_region(region)

    infer.end = end  # type: ignore[attr-defined]
    return infer


def _load(
    make: Callable[[], Callable[[], None]],
    number: int,
    is_over: threading.Event,
    failures: list[Any],
) -> None:
    """Repeat a load as often, and until the bulk is over."""
    try:
        infer = make()
        try:
            for done in count():
                if done >= number and is_over.is_set():
                    break
                infer()
        finally:
            getattr(infer, "end", lambda: None)()
    except BaseException as error:
        failures.append(error)


def _bulk(proxy: Adopting, directory: Path, number: int) -> None:
    """Send requests by perf_analyzer, of each model over its protocols at once."""
    bulks = [*_BULK, *(_ONNX_BULK if triton.ONNX_BACKEND else ())]
    each = max(_MIN_REQUESTS, number // sum(len(bulk.protocols) for bulk in bulks))
    data = directory / "inputs.json"
    random = np.random.default_rng()
    addresses = {_GRPC: proxy.grpc, _HTTP: proxy.http}
    for bulk in bulks:
        data.write_text(json.dumps({"data": [bulk.row(random) for _ in range(64)]}))
        clients = []
        for first_id, protocol in enumerate(bulk.protocols):
            flags = ["-m", bulk.model, "-i", protocol, "-u", addresses[protocol]]
            flags += [f"--input-data={data}", f"--concurrency-range={_CONCURRENCY}"]
            flags += [f"--request-count={each}", *bulk.flags]
            if bulk.flags is _SEQUENCES:
                start = 1 + first_id * 1_000_000
                flags.append(f"--sequence-id-range={start}:{start + 999_999}")
            else:
                flags.append("--max-threads=2")
            argv = ["perf_analyzer", *flags]
            clients.append(
                subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        for client in clients:
            output, is_stuck = _await_end(client)
            assert is_stuck or client.returncode == 0, (bulk, output)


def _await_end(client: subprocess.Popen[str]) -> tuple[str, bool]:
    """Return a client's output, and whether it had all responses and did not end all the same.

    So it is if all were there before it began to measure. Its threads have ended then.
    """
    for _ in range(_MAX_CLIENT_S // _LOOK_S):
        try:
            return client.communicate(timeout=_LOOK_S)[0], False
        except subprocess.TimeoutExpired:
            names = [path.read_text() for path in Path(f"/proc/{client.pid}/task").glob("*/comm")]
            if names.count("perf_analyzer\n") == 1:
                client.kill()
                return client.communicate()[0], True
    client.kill()
    return client.communicate()[0], False


def _run(proxy: Adopting, directory: Path, bulk: int) -> None:
    makers: list[Callable[[], Callable[[], None]]] = [
        lambda: _unary(tritonclient.http, proxy.http),
        lambda: _unary(tritonclient.grpc, proxy.grpc),
        lambda: _stream(proxy.grpc),
        lambda: _sequence(tritonclient.grpc, proxy.grpc),
        lambda: _sequence(tritonclient.http, proxy.http),
        lambda: _shared_memory(tritonclient.grpc, proxy.grpc, "adopt_g"),
        lambda: _shared_memory(tritonclient.http, proxy.http, "adopt_h"),
    ]
    failures: list[Any] = []
    is_over = threading.Event()
    arguments = ((maker, _LOADS, is_over, failures) for maker in makers)
    threads = [threading.Thread(target=_load, args=each) for each in arguments]
    for thread in threads:
        thread.start()
    try:
        if bulk:
            _bulk(proxy, directory, bulk)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not failures, [str(failure) for failure in failures]


def _settled(proxy: Adopting) -> dict[str, Any]:
    """The report, when no copies are in flight any more."""
    reports = [proxy.report()]

    def is_settled() -> bool:
        reports.append(proxy.report())
        before, now = (report["comparison"]["compared"] for report in reports[-2:])
        return bool(before == now)

    until(is_settled, "the last comparison")
    return reports[-1]


class _Servers(NamedTuple):
    """Addresses of both servers over HTTP and gRPC."""

    old: tuple[str, str]
    new: tuple[str, str]


@pytest.fixture
def servers(venv: Path, tmp_path: Path) -> Iterator[_Servers]:
    """Triton and a mesh with the same models."""
    assert venv == triton.VENV
    repository, flags = _repository(tmp_path / "models"), SERVERS["python"]
    more = [triton.with_onnx_backend(tmp_path / "backends")] if triton.ONNX_BACKEND else []
    with ExitStack() as stack:
        with skipping():
            real = stack.enter_context(
                triton.running(repository, tmp_path / "triton.log", *flags, *more)
            )
        mesh = stack.enter_context(
            running(repository, tmp_path / "nereid.log", *flags, *NEREID_FLAGS)
        )
        old, new = (
            (f"127.0.0.1:{server.http_port}", f"127.0.0.1:{server.grpc_port}")
            for server in (real.server, mesh)
        )
        yield _Servers(old, new)


def test_traffic_moves_over_and_back(servers: _Servers, tmp_path: Path) -> None:
    if _RESPONSES and shutil.which("perf_analyzer") is None:
        pytest.skip("perf_analyzer is not in the PATH")
    old, new = servers
    with adopting(*old, tmp_path, f"--to={new[0]}", f"--to-grpc={new[1]}") as proxy:
        rounds = max(_ROUNDS, _RESPONSES // _PER_ROUND)
        for _ in range(rounds):
            for weight in (0, 50, 100):
                proxy.turn(weight)
                _run(proxy, tmp_path, _RESPONSES // (3 * rounds))
                report = proxy.report()
                print(weight, report["responses"], report["comparison"]["compared"], flush=True)
            proxy.back()
        report = _settled(proxy)
    (tmp_path / "report.json").write_text(json.dumps(report, indent=1))
    assert (report["failed"], report["failed_over"]) == (0, 0)
    assert report["unexplained"] == 0, report["comparison"]
    assert report["comparison"]["compared"] > max(_RESPONSES, _ROUNDS * 3 * _LOADS * len(_inputs()))
    assert min(report["responses"].values()) > 0
