"""Requests of few bytes whose tensors, or whose responses that nobody reads, take far more."""

from __future__ import annotations

import gzip
import json
import re
import select
import struct
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.support.hostile.attack import (
    ANY,
    ENDED,
    REFUSED,
    SERVED,
    Attack,
    Client,
    Prepared,
    Target,
)
from tests.support.hostile.raw_clients import GrpcClient, HttpClient, data_frames, is_ready, post
from tests.support.hostile.sending import INFER, SERVICE, ask, grpc_body, infer_message
from tests.support.rpc.http2_frames import message

_CACHED = "/v2/models/cached_fp32/infer"
_STRINGS = "/v2/models/identity_bytes/infer"
_GZIP = ("grpc-encoding", "gzip")
_FLOATS = 15 << 20
# The executor's runtime has, and keeps, tensors of 60 MiB: input, copy and output.
_RUNTIME_MIB = 180
# A response that has not begun by then waits for those before it.
_BEGINS_S = 1


def _strings(count: int, element: bytes) -> bytes:
    return (struct.pack("<I", len(element)) + element) * count


def _http_request(path: str, datatype: str, count: int, raw: bytes, **output: int | bool) -> bytes:
    """A compressed request with one tensor, and a response as output's parameters say."""
    tensor: dict[str, Any] = {"name": "INPUT0", "datatype": datatype, "shape": [1, count]}
    tensor["parameters"] = {"binary_data_size": len(raw)}
    wanted = {"name": "OUTPUT0", "parameters": output or {"binary_data": True}}
    head = json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()
    lines = f"Inference-Header-Content-Length: {len(head)}", "Content-Encoding: gzip"
    return post(path, gzip.compress(head + raw), *lines)


def _http(
    name: str, make: Callable[[], bytes], expected: re.Pattern[str], more_mib: int = 0
) -> Attack:
    return Attack(name, Prepared(make, ask), expected, more_mib=more_mib)


def _echo_request() -> bytes:
    return _http_request(INFER, "FP32", _FLOATS, bytes(4 * _FLOATS))


def _echo_message() -> bytes:
    body = infer_message(shape=(1, _FLOATS), raw=bytes(4 * _FLOATS))
    return message(gzip.compress(body), 1)


def _unread_http(connections: int) -> Client:
    """A request on each connection, one after the other, whose response nobody reads."""

    def send(target: Target, request: bytes) -> str:
        with ExitStack() as stack:
            for _ in range(connections):
                client = HttpClient(target.http, target.source, receive_bytes=4096)
                stack.callback(client.close)
                client.socket.setblocking(True)
                client.socket.sendall(request)
                is_ready(client.socket, select.POLLIN, _BEGINS_S)
        return "closed"

    return Prepared(_echo_request, send)


def _unread_grpc(streams: int, method: str) -> Client:
    """Request echoes over streams that have no window for their responses."""

    def send(target: Target, content: bytes) -> str:
        with ExitStack() as stack:
            for _ in range(streams):
                client = GrpcClient(target.grpc, target.source, window_bytes=0, receive_bytes=4096)
                stack.callback(client.close)
                client.pump(client.headers(1, SERVICE + method, _GZIP))
                client.pump(data_frames(1, content, end=method == "ModelInfer"), limit_s=2)
                client.await_response(_BEGINS_S)
        return "closed"

    return Prepared(_echo_message, send)


def _cached(count: int, size_bytes: int) -> Client:
    """Requests for responses that are cached, no two alike."""

    def send(target: Target, requests: bytes) -> str:
        connection = HttpClient(target.http, target.source)
        connection.pipelined = True
        try:
            return connection.pump(requests, until=lambda: connection.closed, limit_s=20).outcome
        finally:
            connection.close()

    def make() -> bytes:
        tensor: dict[str, Any] = {"name": "INPUT0", "datatype": "FP32"}
        tensor["shape"] = [1, size_bytes // 4]
        tensor["parameters"] = {"binary_data_size": size_bytes}
        wanted = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()
        line = f"Inference-Header-Content-Length: {len(head)}"
        requests = []
        for number in range(count):
            close = ["Connection: close"] if number == count - 1 else []
            raw = struct.pack("<f", number) * (size_bytes // 4)
            requests.append(post(_CACHED, head + raw, line, *close))
        return b"".join(requests)

    return Prepared(make, send)


ATTACKS = (
    _http(
        "HTTP gzip of 16 million empty strings",
        lambda: _http_request(_STRINGS, "BYTES", 16_000_000, _strings(16_000_000, b"")),
        REFUSED,
    ),
    _http(
        "HTTP gzip of 10 million strings",
        lambda: _http_request(_STRINGS, "BYTES", 10_000_000, _strings(10_000_000, b"ab")),
        REFUSED,
    ),
    _http(
        "HTTP gzip of 50,000 strings",
        lambda: _http_request(_STRINGS, "BYTES", 50_000, _strings(50_000, b"ab")),
        SERVED,
    ),
    Attack(
        "gRPC gzip of 15 million empty strings",
        grpc_body(
            lambda: gzip.compress(
                infer_message(
                    "identity_bytes",
                    "BYTES",
                    (1, 15_000_000),
                    raw=_strings(15_000_000, b""),
                )
            ),
            "ModelInfer",
            _GZIP,
            compressed=1,
        ),
        REFUSED,
    ),
    Attack(
        "gRPC gzip of 50,000 strings",
        grpc_body(
            lambda: gzip.compress(
                infer_message("identity_bytes", "BYTES", (1, 50_000), raw=_strings(50_000, b"ab"))
            ),
            "ModelInfer",
            _GZIP,
            compressed=1,
        ),
        SERVED,
    ),
    _http(
        "classes of 15 million floats",
        lambda: _http_request(INFER, "FP32", _FLOATS, bytes(4 * _FLOATS), classification=2**31 - 1),
        REFUSED,
    ),
    _http(
        "three classes of 15 million floats",
        lambda: _http_request(INFER, "FP32", _FLOATS, bytes(4 * _FLOATS), classification=3),
        ENDED,
        more_mib=_RUNTIME_MIB,
    ),
    _http("an echo of 60 MiB", _echo_request, SERVED, more_mib=_RUNTIME_MIB),
    Attack("unread echoes of 60 MiB over HTTP", _unread_http(12), ANY, more_mib=_RUNTIME_MIB),
    Attack(
        "unread echoes of 60 MiB over gRPC",
        _unread_grpc(12, "ModelInfer"),
        ANY,
        more_mib=_RUNTIME_MIB,
    ),
    Attack(
        "unread echoes of 60 MiB on streams",
        _unread_grpc(12, "ModelStreamInfer"),
        ANY,
        more_mib=_RUNTIME_MIB,
    ),
    Attack("200 MB of responses for the cache", _cached(200, 1_000_000), SERVED),
    Attack("2 MB of responses for the cache", _cached(200, 10_000), SERVED),
)
