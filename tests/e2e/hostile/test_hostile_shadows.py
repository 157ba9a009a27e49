"""Other servers as shadows that misbehave: no client waits or fails, and no memory fills."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import hpack
import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from nereid.pb import kserve_pb2
from nereid_explain import shadow as command
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import save_scaler
from tests.support.rpc import http2_frames as http2

pytestmark = pytest.mark.slow

_STREAM = 1
_PIECE = bytes(1 << 14)
_GROWN_MIB = 250
# Reasons that say nothing about the other server.
_BEFORE = {"the process that compares had not started", "the shadow was busy"}
_HEAD = [(":status", "200"), ("content-type", "application/grpc")]

Behaviour = Callable[[socket.socket], None]


def _headers(*fields: tuple[str, str], end: bool = False) -> bytes:
    flags = http2.END_HEADERS | (http2.END_STREAM if end else 0)
    return http2.frame(http2.HEADERS, flags, _STREAM, hpack.Encoder().encode(fields))


def _data(payload: bytes) -> bytes:
    frames = (
        http2.frame(http2.DATA, 0, _STREAM, payload[start : start + len(_PIECE)])
        for start in range(0, len(payload), len(_PIECE))
    )
    return b"".join(frames)


def _trailers(status: int = 0, text: str = "") -> bytes:
    return _headers(("grpc-status", str(status)), ("grpc-message", text), end=True)


def _silent(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def _close(connection: socket.socket) -> None:
    del connection


def _send(*parts: bytes) -> Behaviour:
    """These bytes, once a request has come."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(http2.settings())
        connection.recv(1 << 16)
        connection.sendall(b"".join(parts))
        _silent(connection)

    return behave


def _repeat(part: bytes, *first: bytes) -> Behaviour:
    """These bytes without end."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(http2.settings())
        connection.recv(1 << 16)
        connection.sendall(b"".join(first))
        while True:
            connection.sendall(part)

    return behave


def _response(raw: bytes = bytes(32), request_id: str = "") -> bytes:
    response = kserve_pb2.ModelInferResponse(model_name="plain", id=request_id)
    response.outputs.add(name="OUTPUT0", datatype="FP32", shape=[1, 8])
    response.raw_output_contents.append(raw)
    return response.SerializeToString()


def _bomb() -> bytes:
    body = gzip.compress(bytes(256 << 20))
    return _headers(*_HEAD, ("grpc-encoding", "gzip")) + _data(http2.message(body, 1))


BEHAVIOURS: dict[str, Callable[[], Behaviour]] = {
    "silent": lambda: _silent,
    "closes": lambda: _close,
    "no HTTP/2": lambda: _send(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\n\r\n" * 99),
    "redirects": lambda: _send(
        _headers((":status", "302"), ("location", "http://127.0.0.1/"), end=True)
    ),
    "endless headers": lambda: _repeat(
        http2.frame(http2.CONTINUATION, 0, _STREAM, bytes(1 << 14)),
        http2.frame(http2.HEADERS, 0, _STREAM, b"\x88"),
    ),
    "endless pings": lambda: _repeat(http2.frame(http2.PING, payload=bytes(8)) * 64),
    "bomb": lambda: _send(_bomb(), _trailers()),
    "no message": lambda: _send(_headers(*_HEAD), _trailers()),
    "no protobuf": lambda: _send(_headers(*_HEAD), _data(http2.message(b"\xff" * 99)), _trailers()),
    "short tensor": lambda: _send(
        _headers(*_HEAD), _data(http2.message(_response(b"abc"))), _trailers()
    ),
    "another id": lambda: _send(
        _headers(*_HEAD), _data(http2.message(_response(request_id="\x1b[2J"))), _trailers()
    ),
    "control characters": lambda: _send(_headers(*_HEAD), _trailers(3, "%1B[2Jboo")),
}


@contextlib.contextmanager
def serving(behave: Behaviour) -> Iterator[int]:
    """A server whose connections all behave like this; its port."""

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            behave(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                opened.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    opened: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for connection in opened:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def responding(make_messages: Callable[[], Iterator[bytes]]) -> Iterator[int]:
    """A server that obeys flow control, and sends these messages to each call; its port."""

    def respond(_request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        return make_messages()

    handler: Any = grpc.unary_stream_rpc_method_handler(respond)
    methods = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService", {"ModelInfer": handler}
    )
    unlimited = [("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(4), options=unlimited)
    server.add_generic_rpc_handlers((methods,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("repository")
    save_scaler(root, "plain", 2, "max_batch_size: 16\n")
    with running(root, tmp_path_factory.mktemp("log") / "log") as mesh:
        yield mesh


def _report(mesh: Mesh) -> dict[str, Any]:
    document = json.loads(mesh.get("/v2/repository/models/plain/shadow")[1])
    return document["report"] or {"compared": 0, "not_compared": {}}


def _rss_mib(root: int) -> float:
    """Resident memory of a process and its children."""
    try:
        pages = int(Path(f"/proc/{root}/statm").read_text().split()[1])
        tasks = [path.read_text() for path in Path(f"/proc/{root}/task").glob("*/children")]
    except FileNotFoundError:
        return 0
    children = (int(child) for text in tasks for child in text.split())
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20) + sum(map(_rss_mib, children))


def _infer(client: grpcclient.InferenceServerClient, number: int) -> None:
    array = np.full((1, 8), 1.5, np.float32)
    tensor = grpcclient.InferInput("INPUT0", [1, 8], "FP32")
    tensor.set_data_from_numpy(array)
    for _ in range(number):
        response = client.infer("plain", [tensor], client_timeout=30)
        assert np.array_equal(response.as_numpy("OUTPUT0"), array * 2)


SERVERS: dict[str, Callable[[], contextlib.AbstractContextManager[int]]] = {
    **{name: partial(lambda make: serving(make()), make) for name, make in BEHAVIOURS.items()},
    "responses without end": lambda: responding(
        lambda: itertools.repeat(_response(bytes(8 << 20)))
    ),
    "a huge response": lambda: responding(lambda: iter([_response(bytes(400 << 20))])),
}


@pytest.mark.parametrize("name", SERVERS)
def test_no_client_notices(mesh: Mesh, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with grpcclient.InferenceServerClient(mesh.grpc) as client, SERVERS[name]() as port:
        _infer(client, 20)
        before_mib = _rss_mib(mesh.process.pid)
        to = f"url:grpc://127.0.0.1:{port}/plain"
        given = ["plain", "-u", mesh.http]
        assert command.main(["set", *given, "--to", to, "--copy-timeout", "2"]) == 0

        grown_mib = 0.0

        def has_outcome() -> bool:
            nonlocal grown_mib
            _infer(client, 20)
            grown_mib = max(grown_mib, _rss_mib(mesh.process.pid) - before_mib)
            found = _report(mesh)
            reasons = found["not_compared"].keys() - _BEFORE
            return bool(found["compared"] or reasons)

        until(has_outcome, "an outcome of a copy")
        _infer(client, 20)
        assert grown_mib < _GROWN_MIB
        assert command.main(["report", *given]) in {0, 1}
        assert "\x1b" not in capsys.readouterr().out
        assert command.main(["clear", *given]) == 0


def test_typed_contents_are_compared(mesh: Mesh) -> None:
    """MLServer and KServe's own server send them."""
    response = kserve_pb2.ModelInferResponse(model_name="plain")
    output = response.outputs.add(name="OUTPUT0", datatype="FP32", shape=[1, 8])
    output.contents.fp32_contents.extend([3.0] * 8)
    with (
        grpcclient.InferenceServerClient(mesh.grpc) as client,
        responding(lambda: iter([response.SerializeToString()])) as port,
    ):
        given = ["plain", "-u", mesh.http]
        assert command.main(["set", *given, "--to", f"url:grpc://127.0.0.1:{port}/plain"]) == 0
        _infer(client, 4)
        until(lambda: _report(mesh)["compared"] == 4, "comparisons")
        assert _report(mesh)["differing"] == 0
        assert command.main(["clear", *given]) == 0


@pytest.mark.parametrize(
    "document",
    [
        {"to": f"model:{'n' * 10_000}"},
        {"to": "model:\x1b[2J"},
        {"to": "url:grpc://127.0.0.1:99999/plain\r\nx: y"},
        {"to": "url:grpc://user@host:1/plain\x00"},
        {"to": "model:plain", "percent": 1e400},
        {"to": "version:1", "rules": "*: top-k=1;" * 100_000},
        {"to": "version:1", "rules": {"a": "exact"}},
        {"to": "version:1", "timeout_s": 1e9},
        {"to": [["version:1"]] * 1000},
    ],
)
def test_hostile_settings_are_refused(mesh: Mesh, document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    status, reply = mesh.get("/v2/repository/models/plain/shadow", "POST", body)
    assert status == 400, reply
    # An error names what is wrong, and does not send all of it back.
    assert len(reply) < 2000
    for text in (b"[" * 200_000, b'{"to": ' * 50_000, b"\xff", b"", b"null"):
        status, reply = mesh.get("/v2/repository/models/plain/shadow", "POST", text)
        assert (status, len(reply) < 2000) == (400, True), reply
