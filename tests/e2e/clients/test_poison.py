"""Memory that nobody has written is found in what any client receives (tests/support/mesh)."""

from __future__ import annotations

import json
import queue
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.support.mesh import poison
from tests.support.mesh.mesh import Mesh, running
from tests.support.models.onnx_models import identity

_ELEMENTS = 20_000
_PLANTED = Path(__file__).with_name("unwritten_part.py")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("poison")
    identity(root / "models" / "same" / "1", "FP32", ["n", _ELEMENTS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESH_TEST_HOOKS", str(_PLANTED))
        with running(root / "models", root / "log") as one:
            yield one


def _raw(mesh: Mesh) -> None:
    size = {"binary_data_size": 4 * _ELEMENTS}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, _ELEMENTS], "parameters": size}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    with socket.create_connection(("127.0.0.1", mesh.http_port), 20) as connection:
        connection.sendall(
            b"POST /v2/models/same/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%b"
            % (len(head), len(head) + 4 * _ELEMENTS, head + bytes(4 * _ELEMENTS))
        )
        while connection.recv(1 << 16):
            pass


def _input(module: Any) -> Any:
    given = module.InferInput("x", [1, _ELEMENTS], "FP32")
    given.set_data_from_numpy(np.zeros((1, _ELEMENTS), np.float32))
    return given


def _http(mesh: Mesh) -> None:
    with tritonclient.http.InferenceServerClient(mesh.http) as client:
        client.infer("same", [_input(tritonclient.http)])


def _stream(mesh: Mesh) -> None:
    arrived: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer("same", [_input(tritonclient.grpc)])
        _, error = arrived.get(timeout=20)
        assert error is None


@pytest.mark.parametrize("send", [_raw, _http, _stream])
def test_a_part_that_nobody_wrote_is_found(mesh: Mesh, send: Callable[[Mesh], None]) -> None:
    send(mesh)
    assert poison.take_found()
