"""Requests that never end, end early, or are never read: what is held for them is bounded."""

from __future__ import annotations

import select
import time
from contextlib import ExitStack

from tests.support.hostile.attack import ANY, Attack, Client, Target
from tests.support.hostile.raw_clients import GrpcClient, HttpClient, RawClient, is_ready, post
from tests.support.hostile.sending import INFER, SERVICE, infer_message
from tests.support.rpc.http2_frames import message

_MIB = 1 << 20
_SIZE = 60 * _MIB


def _http(target: Target, stack: ExitStack, *, reads: bool = True) -> HttpClient:
    client = HttpClient(target.http, target.source, receive_bytes=None if reads else 4096)
    stack.callback(client.close)
    return client


def _grpc(target: Target, stack: ExitStack, *, reads: bool = True) -> GrpcClient:
    client = GrpcClient(
        target.grpc,
        target.source,
        window_bytes=(1 << 31) - 1 if reads else 0,
        receive_bytes=None if reads else 4096,
    )
    stack.callback(client.close)
    return client


def _unfinished_http(count: int, size: int, *lines: str) -> Client:
    """Bodies that lack their last byte."""

    def client(target: Target) -> str:
        with ExitStack() as stack:
            request = post(INFER, bytes(size), *lines, size=size + 1)
            for each in [_http(target, stack) for _ in range(count)]:
                each.pump(request, limit_s=3)
        return "waiting"

    return client


def _unfinished_chunked(target: Target) -> str:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + bytes(_MIB) + b"\r\n"
    with ExitStack() as stack:
        for each in [_http(target, stack) for _ in range(12)]:
            each.pump(head.encode() + chunk * 60, limit_s=3)
    return "waiting"


def _small_chunks(target: Target) -> str:
    """A body in chunks of a byte."""
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with ExitStack() as stack:
        client = _http(target, stack)
        return client.pump(
            head.encode() + b"1\r\nx\r\n" * 500_000, until=lambda: client.ended, limit_s=5
        ).outcome


def _unfinished_grpc(connections: int, streams: int, path: str) -> Client:
    """A message on each stream that lacks its last byte, as far as the server lets them grow."""

    def client(target: Target) -> str:
        size = 600 * _MIB // connections // streams
        with ExitStack() as stack:
            clients = [_grpc(target, stack) for _ in range(connections)]
            for each in clients:
                for number in range(streams):
                    stream = 2 * number + 1
                    each.pump(each.headers(stream, SERVICE + path), limit_s=2)
                    each.send_content(stream, message(bytes(size))[:-1], end=False, limit_s=2)
        return "waiting"

    return client


def _aborted(count: int, size: int) -> Client:
    """Uploads that end with a reset."""

    def client(target: Target) -> str:
        for _ in range(count):
            upload = HttpClient(target.http, target.source)
            upload.pump(post(INFER, bytes(size), size=size + 1), limit_s=3)
            upload.abort()
        return "closed"

    return client


def _aborted_grpc(count: int, size: int) -> Client:
    def client(target: Target) -> str:
        for _ in range(count):
            upload = GrpcClient(target.grpc, target.source)
            upload.pump(upload.headers(1, SERVICE + "ModelInfer"))
            upload.send_content(1, message(bytes(size))[:-1], end=False, limit_s=3)
            upload.abort()
        return "closed"

    return client


def _until_refused(clients: list[RawClient], drop: bytes, interval_s: float, limit_s: float) -> str:
    """Send each a few bytes from time to time; how the last of them ended."""
    start = time.monotonic()
    left = list(clients)
    while left and time.monotonic() - start < limit_s:
        for each in left:
            each.pump(drop, limit_s=0.01)
        left = [each for each in left if not (each.closed or each.ended)]
        time.sleep(interval_s)
    return "waiting" if left else "closed"


def _slow_bodies(target: Target) -> str:
    """Bodies that come byte by byte."""
    with ExitStack() as stack:
        clients: list[RawClient] = []
        for _ in range(20):
            client = _http(target, stack)
            clients.append(client.pump(post(INFER, b"{", size=1000)))
        return _until_refused(clients, b" ", 0.3, 12)


def _slow_messages(target: Target) -> str:
    """gRPC messages that come byte by byte."""
    with ExitStack() as stack:
        client = _grpc(target, stack)
        client.pump(client.headers(1, SERVICE + "ModelInfer"))
        client.send_content(1, message(bytes(1000))[:100], end=False)
        start = time.monotonic()
        while client.outcome_of(1) == "waiting" and time.monotonic() - start < 12:
            client.send_content(1, b" ", end=False)
            time.sleep(0.3)
        return client.outcome_of(1)


def _slow_heads(target: Target) -> str:
    """Heads that come byte by byte."""
    with ExitStack() as stack:
        clients: list[RawClient] = []
        for _ in range(20):
            client = _http(target, stack)
            clients.append(client.pump(b"GET / HTTP/1.1\r\nX: "))
        return _until_refused(clients, b"x", 0.3, 12)


def _silent_prefaces(target: Target) -> str:
    """gRPC connections that never say that they are."""
    with ExitStack() as stack:
        clients: list[RawClient] = []
        for _ in range(20):
            client = RawClient(target.grpc, target.source)
            stack.callback(client.close)
            clients.append(client.pump(b"PRI * HTTP/2.0\r\n"))
        return _until_refused(clients, b"", 0.3, 15)


def _unread_responses(target: Target) -> str:
    """Large responses that nobody reads."""
    body = infer_message(shape=(1, 2 * _MIB), raw=bytes(8 * _MIB))
    with ExitStack() as stack:
        for _ in range(4):
            client = _grpc(target, stack, reads=False)
            for number in range(6):
                client.pump(client.headers(2 * number + 1, SERVICE + "ModelInfer"), limit_s=1)
                client.send_content(2 * number + 1, message(body), limit_s=1)
    return "closed"


def _unread_http(target: Target) -> str:
    """Pipelined requests whose large responses nobody reads."""
    text = b'{"inputs":[{"name":"INPUT0","shape":[1,1048576],"datatype":"FP32",'
    text += b'"parameters":{"binary_data_size":4194304}}],"parameters":{"binary_data_output":true}}'
    request = post(INFER, text + bytes(4 * _MIB), f"Inference-Header-Content-Length: {len(text)}")
    with ExitStack() as stack:
        for _ in range(4):
            client, view = _http(target, stack, reads=False), memoryview(request * 12)
            # Until the mesh takes no more.
            while view and is_ready(client.socket, select.POLLOUT, 0.3):
                try:
                    view = view[client.socket.send(view[: 1 << 20]) :]
                except ConnectionError:
                    break
    return "closed"


def _pipelined(target: Target) -> str:
    """100,000 requests at once."""
    with ExitStack() as stack:
        client = _http(target, stack)
        client.pipelined = True
        request = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        client.pump(request * 100_000, until=lambda: False, limit_s=2)
        return "closed" if client.closed else client.outcome


ATTACKS = (
    Attack("12 unfinished bodies of 60 MiB", _unfinished_http(12, _SIZE), ANY),
    Attack("12 unfinished chunked bodies", _unfinished_chunked, ANY, nightly=True),
    Attack("200 unfinished bodies of 3 MiB", _unfinished_http(200, 3 * _MIB), ANY, nightly=True),
    Attack("a body in chunks of a byte", _small_chunks),
    Attack("one unfinished message of 600 MiB", _unfinished_grpc(1, 1, "ModelInfer"), ANY),
    Attack(
        "one unfinished streamed message",
        _unfinished_grpc(1, 1, "ModelStreamInfer"),
        ANY,
        nightly=True,
    ),
    Attack(
        "unfinished messages on 100 streams",
        _unfinished_grpc(1, 100, "ModelInfer"),
        ANY,
        nightly=True,
    ),
    Attack(
        "unfinished messages on 20 connections",
        _unfinished_grpc(20, 4, "ModelInfer"),
        ANY,
        nightly=True,
    ),
    Attack("30 aborted uploads of 8 MiB", _aborted(30, 8 * _MIB), ANY),
    Attack("30 aborted uploads of 60 MiB", _aborted(30, _SIZE), ANY, nightly=True),
    Attack("30 aborted messages of 60 MiB", _aborted_grpc(30, _SIZE), ANY, nightly=True),
    Attack("slow bodies", _slow_bodies),
    Attack("slow messages", _slow_messages, nightly=True),
    Attack("slow heads", _slow_heads, nightly=True),
    Attack("gRPC connections without a preface", _silent_prefaces, nightly=True),
    Attack("unread gRPC responses", _unread_responses, ANY, nightly=True),
    Attack("unread HTTP responses", _unread_http, ANY),
    Attack("100,000 pipelined requests", _pipelined, ANY),
)
