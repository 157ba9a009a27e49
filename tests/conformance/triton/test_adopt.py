"""`nereid adopt` before the real Triton: over and back twice under load, without a failure."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.conformance.triton.conftest import Pair
from tests.support.mesh.adopting import Adopting, adopting

_ROUNDS = 2
_LOADS = 8
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


def _load(make: Callable[[], Callable[[], None]], number: int, failures: list[Any]) -> None:
    try:
        infer = make()
        for _ in range(number):
            infer()
    except BaseException as error:
        failures.append(error)


def _run(proxy: Adopting) -> None:
    makers: list[Callable[[], Callable[[], None]]] = [
        lambda: _unary(tritonclient.http, proxy.http),
        lambda: _unary(tritonclient.grpc, proxy.grpc),
        lambda: _stream(proxy.grpc),
    ]
    failures: list[Any] = []
    threads = [threading.Thread(target=_load, args=(maker, _LOADS, failures)) for maker in makers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.parametrize("pair", ["python"], indirect=True)
def test_traffic_moves_over_and_back(pair: Pair, tmp_path: Path) -> None:
    real, nereid = pair.triton.server, pair.nereid
    old, new = (
        (f"127.0.0.1:{server.http_port}", f"127.0.0.1:{server.grpc_port}")
        for server in (real, nereid)
    )
    with adopting(*old, tmp_path, f"--to={new[0]}", f"--to-grpc={new[1]}") as proxy:
        for _ in range(_ROUNDS):
            for weight in (0, 50, 100):
                proxy.turn(weight)
                _run(proxy)
            proxy.back()
        inferences = _ROUNDS * 3 * _LOADS * (2 * len(_inputs()) + 1)
        report = proxy.await_compared(inferences)
    assert (report["failed"], report["failed_over"]) == (0, 0)
    assert report["unexplained"] == 0, report["comparison"]
    assert report["comparison"]["compared"] > inferences / 2
    assert min(report["responses"].values()) > 0
