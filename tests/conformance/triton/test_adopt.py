"""`nereid adopt` before the real Triton: over and back twice under load, without a failure.

NEREID_ADOPT_RESPONSES is the number of responses to compare, a few hundred by default. A large one
needs perf_analyzer in the PATH, which makes most of that load.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import shared_memory

from tests.conformance.triton.conftest import Pair
from tests.support.mesh.adopting import Adopting, adopting
from tests.support.mesh.mesh import until

_ROUNDS = 2
_LOADS = 8
_RESPONSES = int(os.environ.get("NEREID_ADOPT_RESPONSES", "0"))
_PER_ROUND = 100_000
# Models for perf_analyzer, and those that respond to a request each time by the same bytes.
_BULK = ("double", "flat", "named", "wrapped", "chain", "diamond", "nested", "counting")
_SEQUENCE_IDS = count(1)
_CALLED = (
    "r = pb_utils.InferenceRequest(model_name='flat', requested_output_names=['Y'],"
    " inputs=[pb_utils.Tensor('X', np.array([1, 2], np.float32))]).exec()\n"
    "found = pb_utils.get_output_tensor_by_name(r, 'Y').as_numpy().tolist()"
)
_DATATYPES = {"f": "FP32", "O": "BYTES"}


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
    """Send requests by perf_analyzer, of each model over both protocols at once."""
    data = directory / "inputs.json"
    rows = np.random.default_rng().random((64, 4)).round(4).tolist()
    data.write_text(json.dumps({"data": [{"X": row} for row in rows]}))
    each = max(1, number // (2 * len(_BULK)))
    for model in _BULK:
        clients = []
        for protocol, address in (("grpc", proxy.grpc), ("http", proxy.http)):
            flags = ["-m", model, "-i", protocol, "-u", address, f"--request-count={each}"]
            flags += [f"--input-data={data}", "--concurrency-range=16", "--max-threads=2"]
            argv = ["perf_analyzer", *flags, "--shape=X:4"]
            clients.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        for client in clients:
            output, _ = client.communicate(timeout=3600)
            assert client.returncode == 0, output


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
    assert not failures, failures


def _settled(proxy: Adopting) -> dict[str, Any]:
    """The report, when no copies are in flight any more."""
    reports = [proxy.report()]

    def is_settled() -> bool:
        reports.append(proxy.report())
        before, now = (report["comparison"]["compared"] for report in reports[-2:])
        return bool(before == now)

    until(is_settled, "the last comparison")
    return reports[-1]


@pytest.mark.parametrize("pair", ["python"], indirect=True)
def test_traffic_moves_over_and_back(pair: Pair, tmp_path: Path) -> None:
    if _RESPONSES and shutil.which("perf_analyzer") is None:
        pytest.skip("perf_analyzer is not in the PATH")
    real, nereid = pair.triton.server, pair.nereid
    old, new = (
        (f"127.0.0.1:{server.http_port}", f"127.0.0.1:{server.grpc_port}")
        for server in (real, nereid)
    )
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
