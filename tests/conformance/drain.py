"""One SIGTERM with requests in flight, as clients see it; told once for each server.

While connections of HTTP clients are open and three held requests execute, what others ask is
served: "pending". Then HTTP's have gone and the two held over gRPC still execute: from some moment
on new requests are refused. At last these two are released, and the server ends.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2
from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import (
    RESPONSE_S,
    Http,
    NoResponseError,
    Rpc,
    Server,
    ask_http_on,
    decoded_message,
    status_of,
)
from tests.conformance.grpc_infer import request, tensor
from tests.support.mesh.mesh import until

# How long a state is waited for; held requests wait for longer.
_STATE_S: Final = 15.0
_EXIT_S: Final = 60.0
_STREAM: Final = "/inference.GRPCInferenceService/ModelStreamInfer"

_QUICK: Final = request("quick", [tensor("X", "FP32", (1,))], (struct.pack("<f", 2.0),))
_DOCUMENT: Final = {"name": "X", "datatype": "FP32", "shape": [1], "data": [2.0]}
_INFER: Final = Http("POST", "/v2/models/quick/infer", json.dumps({"inputs": [_DOCUMENT]}).encode())
_PROBES: Final = {
    "live": Rpc("ServerLive", pb.ServerLiveRequest()),
    "ready": Rpc("ServerReady", pb.ServerReadyRequest()),
    "health": Rpc("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest()),
}
_RPCS: Final = {
    "infer": Rpc("ModelInfer", _QUICK),
    "model-ready": Rpc("ModelReady", pb.ModelReadyRequest(name="quick")),
    "metadata": Rpc("ServerMetadata", pb.ServerMetadataRequest()),
    "model-metadata": Rpc("ModelMetadata", pb.ModelMetadataRequest(name="quick")),
    "statistics": Rpc("ModelStatistics", pb.ModelStatisticsRequest(name="unused")),
    "index": Rpc("RepositoryIndex", pb.RepositoryIndexRequest()),
}
_HTTP_PROBES: Final = {
    "live": Http(target="/v2/health/live"),
    "ready": Http(target="/v2/health/ready"),
}
_HTTPS: Final = {
    "infer": _INFER,
    "model-ready": Http(target="/v2/models/quick/ready"),
    "metadata": Http(),
    "model-metadata": Http(target="/v2/models/quick"),
    "statistics": Http(target="/v2/models/unused/stats"),
    "index": Http("POST", "/v2/repository/index"),
}
_CHANNELS: Final = ("old", "new")
_STREAMS: Final = ("open-stream", "new-stream")
# The names of what a story reports, in its order.
OUTCOMES: Final = (
    *(f"pending/{channel}-channel/{name}" for channel in _CHANNELS for name in _RPCS),
    *(f"pending/{stream}" for stream in _STREAMS),
    *(f"pending/kept-http/{name}" for name in _HTTPS),
    "pending/metrics",
    *(f"probes/{channel}-channel/{name}" for channel in _CHANNELS for name in _PROBES),
    *(f"probes/kept-http/{name}" for name in _HTTP_PROBES),
    *(f"new-http/{name}" for name in _HTTPS | _HTTP_PROBES),
    "held/http",
    *(f"refused/{channel}-channel/{name}" for channel in _CHANNELS for name in _RPCS | _PROBES),
    *(f"refused/{stream}" for stream in _STREAMS),
    *(f"refused/new-http/{name}" for name in _HTTPS | _HTTP_PROBES),
    *("held/grpc", "held/stream", "exit"),
)

_SOURCES: Final = {
    "quick": """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(each, "X").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each)]) for each in found]
""",
    # Says by one file that it executes, and waits for the other.
    "held": """
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        path = pb_utils.get_input_tensor_by_name(request, "PATH").as_numpy()[0].decode()
        Path(path + ".executes").touch()
        while not Path(path).exists():
            time.sleep(0.01)
        done = np.array([b"done"], np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", done)])]
""",
}
_TENSORS: Final = {
    "quick": 'input { name: "X" data_type: TYPE_FP32 dims: [1] }\n'
    'output { name: "Y" data_type: TYPE_FP32 dims: [1] }\n'
    "instance_group { kind: KIND_CPU }\n",
    "held": 'input { name: "PATH" data_type: TYPE_STRING dims: [1] }\n'
    'output { name: "OUT" data_type: TYPE_STRING dims: [1] }\n'
    "instance_group { kind: KIND_CPU count: 3 }\n",
}


def write_repository(root: Path) -> Path:
    # Times in the statistics of models with requests may be none.
    for name, source in {**_SOURCES, "unused": _SOURCES["quick"]}.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(source)
        (root / name / "config.pbtxt").write_text(
            f'backend: "python"\n{_TENSORS.get(name, _TENSORS["quick"])}'
        )
    return root


def story(server: Server) -> dict[str, Any]:
    """The outcome of each of OUTCOMES; the server has ended."""
    process = server.process
    assert process is not None, "a server without its process"
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool = stack.enter_context(ThreadPoolExecutor(3))
        held = stack.enter_context(closing(_Held(server, folder, pool)))
        kept = {name: _kept(server, stack) for name in _HTTPS | _HTTP_PROBES}
        stream = stack.enter_context(closing(_OpenStream(server.channel)))
        stream.ask(_QUICK)
        until(held.executing, "the held requests to execute", _STATE_S)
        os.kill(process.pid, signal.SIGTERM)
        until(lambda: not _serves(server), "the server to drain", _STATE_S)
        found |= _on_channels(server, "pending", _RPCS) | _on_streams(server, "pending", stream)
        found |= _on_channels(server, "probes", _PROBES)
        for name, each in _HTTPS.items():
            found[f"pending/kept-http/{name}"] = _outcome(ask_http_on, kept[name], each)
        for name, each in _HTTP_PROBES.items():
            found[f"probes/kept-http/{name}"] = _outcome(ask_http_on, kept[name], each)
        found |= _on_new_connections(server, "new-http")
        # What the page says is each server's own.
        page = _outcome(Server(server.metrics_port, 0).ask, Http(target="/metrics"))
        found["pending/metrics"] = page if page == "no answer" else page["status"]
        for connection in kept.values():
            connection.close()
        found["held/http"] = held.release("http")
        until(lambda: not _accepts(server), "requests to be refused", _STATE_S)
        found |= _on_channels(server, "refused", _RPCS | _PROBES)
        found |= _on_streams(server, "refused", stream)
        found |= _on_new_connections(server, "refused/new-http")
        for name in ("grpc", "stream"):
            found[f"held/{name}"] = held.release(name)
        server.close()
        found["exit"] = process.wait(_EXIT_S)
    return found


def _outcome(ask: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return ask(*arguments)
    except NoResponseError:
        return "no answer"


def _serves(server: Server) -> bool:
    live = _outcome(server.ask, _HTTP_PROBES["live"])
    return bool(live != "no answer" and live["status"] == 200)


def _accepts(server: Server) -> bool:
    response = _outcome(server.ask, _RPCS["infer"])
    return bool(response != "no answer" and response["code"] == "OK")


def _kept(server: Server, stack: ExitStack) -> socket.socket:
    """A connection on which a request had its response."""
    address = ("127.0.0.1", server.http_port)
    connection = stack.enter_context(socket.create_connection(address, timeout=RESPONSE_S))
    assert ask_http_on(connection, _INFER)["status"] == 200
    return connection


def _on_new_connections(server: Server, place: str) -> dict[str, Any]:
    asked = _HTTPS | _HTTP_PROBES
    return {f"{place}/{name}": _outcome(server.ask, each) for name, each in asked.items()}


def _on_channels(server: Server, phase: str, rpcs: dict[str, Rpc]) -> dict[str, Any]:
    found = {}
    for name, rpc in rpcs.items():
        found[f"{phase}/old-channel/{name}"] = _outcome(server.ask, rpc)
        with closing(Server(0, server.grpc_port)) as new:
            found[f"{phase}/new-channel/{name}"] = _outcome(new.ask, rpc)
    return found


def _on_streams(server: Server, phase: str, stream: _OpenStream) -> dict[str, Any]:
    with closing(_OpenStream(server.channel)) as new:
        return {
            f"{phase}/open-stream": _outcome(stream.ask, _QUICK),
            f"{phase}/new-stream": _outcome(new.ask, _QUICK),
        }


class _OpenStream:
    """A ModelStreamInfer that goes on until it is closed."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call: Any = channel.stream_stream(_STREAM)
        self._responses: Iterator[bytes] = call(iter(self._messages.get, None), 2 * RESPONSE_S)

    def ask(self, message: pb.ModelInferRequest) -> Any:
        """The response to one request.

        Raises:
            NoResponseError: the connection has ended.
        """
        self._messages.put(message.SerializeToString())
        try:
            return decoded_message(next(self._responses), pb.ModelStreamInferResponse)
        except StopIteration:
            return "the stream's end"
        except grpc.RpcError as error:
            return status_of(error)

    def close(self) -> None:
        self._messages.put(None)


class _Held:
    """Three requests that execute until they are released, by how they were sent."""

    def __init__(self, server: Server, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._folder = folder
        # A client of its own: its connections carry nothing else.
        self._client = Server(server.http_port, server.grpc_port)
        self._stream = _OpenStream(self._client.channel)
        inputs = [{"name": "PATH", "datatype": "BYTES", "shape": [1], "data": [self._path("http")]}]
        body = json.dumps({"inputs": inputs}).encode()
        post = Http("POST", "/v2/models/held/infer", body)
        self._asked: dict[str, Future[Any]] = {
            "http": pool.submit(_outcome, self._client.ask, post),
            "grpc": pool.submit(
                _outcome, self._client.ask, Rpc("ModelInfer", self._message("grpc"))
            ),
            "stream": pool.submit(_outcome, self._stream.ask, self._message("stream")),
        }

    def _path(self, name: str) -> str:
        return str(self._folder / name)

    def _message(self, name: str) -> pb.ModelInferRequest:
        path = self._path(name).encode()
        return request(
            "held", [tensor("PATH", "BYTES", (1,))], (struct.pack("<I", len(path)) + path,)
        )

    def executing(self) -> bool:
        return all(Path(self._path(name) + ".executes").exists() for name in self._asked)

    def release(self, name: str) -> Any:
        """Its outcome."""
        Path(self._path(name)).touch()
        return self._asked[name].result()

    def close(self) -> None:
        """Release what is left."""
        for name in self._asked:
            Path(self._path(name)).touch()
        self._stream.close()
        self._client.close()
