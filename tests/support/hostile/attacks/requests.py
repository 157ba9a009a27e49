"""Heads, names and control requests that are larger, or more, than any client's."""

from __future__ import annotations

import base64
import json
from contextlib import ExitStack

from tests.support.hostile.attack import ANY, ENDED, SERVED, Attack, Client, Target
from tests.support.hostile.attacks.control_calls import flood
from tests.support.hostile.raw_clients import GrpcClient, HttpClient, RawClient, data_frames, post
from tests.support.hostile.sending import (
    INFER,
    SERVICE,
    ask,
    grpc_body,
    http_body,
    infer_message,
    tagged,
)
from tests.support.rpc.http2_frames import message

_MIB = 1 << 20


def _idle(protocol: str, count: int) -> Client:
    """Connections that say nothing more once they are greeted."""

    def client(target: Target) -> str:
        with ExitStack() as stack:
            refused = 0
            for _ in range(count):
                try:
                    opened: RawClient = (
                        HttpClient(target.http, target.source)
                        if protocol == "HTTP"
                        else GrpcClient(target.grpc, target.source)
                    )
                except OSError:
                    refused += 1
                    continue
                stack.callback(opened.close)
                opened.pump(limit_s=0.001)
                refused += opened.closed or opened.ended
            return "closed" if refused else "waiting"

    return client


def _idle_until_closed(target: Target) -> str:
    """One gRPC connection that never calls."""
    client = GrpcClient(target.grpc, target.source)
    try:
        return client.pump(until=lambda: client.closed, limit_s=12).outcome
    finally:
        client.close()


def _head(*lines: str) -> Client:
    return lambda target: ask(target, post(INFER, b"{}", *lines))


def _names_http(target: Target) -> str:
    """Each request names a model of its own, in a header that no other has."""
    client = HttpClient(target.http, target.source)
    client.pipelined = True
    try:
        for start in range(0, 5000, 100):
            requests = []
            for number in range(start, start + 100):
                text = (
                    b'{"inputs":[{"name":"x%d","shape":[1],"datatype":"FP32","parameters":' % number
                )
                text += b'{"binary_data_size":4}}]}'
                length = f"Inference-Header-Content-Length: {len(text)}"
                requests.append(
                    post(f"/v2/models/{'m' * 500}{number}/infer", text + bytes(4), length)
                )
            client.pump(b"".join(requests), limit_s=3)
        return client.outcome
    finally:
        client.close()


def _names_grpc(target: Target) -> str:
    """Each call names a model and a tensor of its own."""
    client = GrpcClient(target.grpc, target.source)
    try:
        for start in range(0, 10_000, 100):
            frames = []
            for number in range(start, start + 100):
                body = infer_message(f"{'m' * 1000}{number}", name=f"{'t' * 1000}{number}", raw=b"")
                stream = 2 * number + 1
                frames.append(client.headers(stream, SERVICE + "ModelInfer"))
                frames.append(data_frames(stream, message(body), end=True))
            client.pump(b"".join(frames), limit_s=3)
            client.wait_for(2 * (start + 99) + 1, 3)
        return client.outcome_of(2 * 9999 + 1)
    finally:
        client.close()


def _large_file() -> bytes:
    content = base64.b64encode(bytes(40 * _MIB)).decode()
    return json.dumps({"parameters": {"config": "{}", "file:1/model.onnx": content}}).encode()


def _large_file_grpc() -> bytes:
    entry = tagged(1, b"file:1/model.onnx") + tagged(2, tagged(4, bytes(40 * _MIB)))
    config = tagged(1, b"config") + tagged(2, tagged(3, b"{}"))
    return tagged(2, b"loaded") + tagged(3, config) + tagged(3, entry)


def _large_config() -> bytes:
    config = json.dumps({"name": "x", "input": [{"name": "a", "dims": [1] * 100}] * 10_000})
    return json.dumps({"parameters": {"config": config}}).encode()


def _flood(path: str, method: str, duration_s: float, port: str = "http") -> Client:
    """The same request again and again as fast as one connection can."""

    def client(target: Target) -> str:
        connection = HttpClient(getattr(target, port), target.source)
        connection.pipelined = True
        try:
            request = post(path, b"", method=method)
            connection.pump(request * 20_000, until=lambda: False, limit_s=duration_s)
            return connection.outcome
        finally:
            connection.close()

    return client


def _ask_and_leave(path: str, clients: int, port: str = "http") -> Client:
    """Clients that ask for as much as a connection takes, and hang up half a second later."""

    def client(target: Target) -> str:
        with ExitStack() as stack:
            opened = [HttpClient(getattr(target, port), target.source) for _ in range(clients)]
            for each in opened:
                stack.callback(each.close)
                each.pipelined = True
                each.pump(post(path, b"", method="GET") * 16, until=lambda: True)
            opened[-1].pump(until=lambda: False, limit_s=0.5)
            return "closed"

    return client


def _of_first_priority(_number: int) -> bytes:
    """For a model with levels of priority."""
    tensor = {"name": "INPUT0", "shape": [1, 8], "datatype": "FP32", "data": [1.5] * 8}
    document = {"inputs": [tensor], "parameters": {"priority": 1}}
    return post("/v2/models/levels/infer", json.dumps(document).encode())


_JSON = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]}'


def _traced(count: int, *lines: str) -> Client:
    """Requests, one after the other on one connection, each with headers of a trace."""

    def client(target: Target) -> str:
        connection = HttpClient(target.http, target.source)
        try:
            for _ in range(count):
                connection.head = b""
                connection.pump(post(INFER, _JSON, *lines), until=lambda: connection.ended)
            return connection.outcome
        finally:
            connection.close()

    return client


_TRACE = f"traceparent: 00-{'a' * 32}-{'b' * 16}"

ATTACKS = (
    Attack(
        "trace headers that are large and no trace's",
        _traced(
            300,
            f"traceparent: 00-{'0-' * 2000}",
            "tracestate: " + ",".join(f"k{number}=v" for number in range(500)),
            f"baggage: {'x=%00;' * 500}",
        ),
        ENDED,
    ),
    Attack("trace headers with every flag", _traced(300, f"{_TRACE}-ff"), SERVED),
    Attack("trace headers", _traced(3, f"{_TRACE}-01", "tracestate: a=b"), SERVED),
    Attack(
        "5,000 digits for the header's length",
        _head("Inference-Header-Content-Length: " + "9" * 5000),
    ),
    Attack(
        "60,000 digits for the header's length",
        _head("Inference-Header-Content-Length: -" + "9" * 60_000),
        nightly=True,
    ),
    Attack(
        "5,000 digits for the body's length", _head("Content-Length: " + "9" * 5000), nightly=True
    ),
    Attack("10,000 headers", _head(*(f"x{number}: y" for number in range(10_000)))),
    Attack("a header of 1 MB", _head("x: " + "y" * _MIB), nightly=True),
    Attack("a path of 1 MB", lambda target: ask(target, post("/v2/" + "x" * _MIB)), nightly=True),
    Attack(
        "60 kB of slashes",
        lambda target: ask(target, post("/v2/models" + "/" * 60_000)),
        nightly=True,
    ),
    Attack(
        "60 kB of percents",
        lambda target: ask(target, post("/v2/models/" + "%0a" * 20_000)),
        nightly=True,
    ),
    Attack(
        "a name with a newline",
        lambda target: ask(target, post("/v2/models/a%0aI0101%20forged%0d/infer", b"{}")),
    ),
    Attack(
        "gRPC a name with a newline",
        grpc_body(lambda: infer_message("a\nI0101 forged\r", raw=bytes(32))),
    ),
    Attack(
        "gRPC a name of 8 MB",
        grpc_body(lambda: infer_message("m" * 8 * _MIB, raw=bytes(32))),
        nightly=True,
    ),
    Attack("5,000 names", _names_http, ANY),
    Attack("gRPC 10,000 names", _names_grpc, ENDED, nightly=True),
    Attack("2,000 idle connections", _idle("HTTP", 2000), ANY),
    Attack("2,000 idle gRPC connections", _idle("gRPC", 2000), ANY, nightly=True),
    Attack("an idle gRPC connection", _idle_until_closed, nightly=True),
    Attack(
        "load with a file of 40 MB",
        http_body(_large_file, "/v2/repository/models/loaded/load"),
        ENDED,
        more_mib=300,
    ),
    Attack(
        "gRPC load with a file of 40 MB",
        grpc_body(_large_file_grpc, "RepositoryModelLoad"),
        ENDED,
        more_mib=300,
        nightly=True,
    ),
    Attack(
        "load with a configuration of 4 MB",
        http_body(_large_config, "/v2/repository/models/loaded/load"),
        ENDED,
        more_mib=100,
        nightly=True,
    ),
    Attack(
        "load with 16 MB of minus signs",
        http_body(
            lambda: b'{"parameters":{"config":' + b"-" * (16 * _MIB) + b"}}",
            "/v2/repository/models/loaded/load",
        ),
        nightly=True,
    ),
    Attack(
        "trace settings of 8 MB",
        http_body(
            lambda: json.dumps({"trace_level": ["TIMESTAMPS"] * 600_000}).encode(),
            "/v2/trace/setting",
        ),
        ENDED,
    ),
    Attack(
        "trace settings of a long number",
        http_body(lambda: b'{"trace_rate":"' + b"9" * _MIB + b'"}', "/v2/trace/setting"),
        nightly=True,
    ),
    Attack(
        "trace settings of many unknown names",
        http_body(
            lambda: json.dumps({f"n{number}": "x" for number in range(200_000)}).encode(),
            "/v2/trace/setting",
        ),
        ENDED,
        nightly=True,
    ),
    Attack(
        "log settings of a long number",
        http_body(lambda: b'{"log_verbose_level":' + b"9" * _MIB + b"}", "/v2/logging"),
        nightly=True,
    ),
    Attack(
        "log settings of many unknown names",
        http_body(
            lambda: json.dumps({f"n{number}": 1 for number in range(200_000)}).encode(),
            "/v2/logging",
        ),
        ENDED,
        nightly=True,
    ),
    Attack(
        "gRPC log settings of 100,000 names",
        grpc_body(
            lambda: b"".join(
                tagged(1, tagged(1, b"n%d" % number) + tagged(2, b"\x08\1"))
                for number in range(100_000)
            ),
            "LogSettings",
        ),
        ENDED,
    ),
    Attack(
        "gRPC trace settings of 100,000 names",
        grpc_body(
            lambda: b"".join(
                tagged(1, tagged(1, b"n%d" % number) + tagged(2, tagged(1, b"x")))
                for number in range(100_000)
            ),
            "TraceSetting",
        ),
        ENDED,
        nightly=True,
    ),
    Attack(
        "register 8 MB of shared memory's name",
        http_body(
            lambda: b'{"key":"' + b"k" * (8 * _MIB) + b'","offset":0,"byte_size":1}',
            "/v2/systemsharedmemory/region/x/register",
        ),
        nightly=True,
    ),
    # Clients of that model wait, as on Triton; those of others do not.
    Attack("4,000 requests of the first priority", flood(_of_first_priority), ANY),
    Attack(
        "one request of the first priority",
        lambda target: ask(target, _of_first_priority(0)),
        SERVED,
    ),
    Attack("asking for statistics", _flood("/v2/models/stats", "GET", 1), ANY),
    Attack("asking for the index", _flood("/v2/repository/index", "POST", 1), ANY),
    Attack("asking for metrics", _flood("/metrics", "GET", 1, "metrics"), ANY),
    Attack("asking for metrics and leaving", _ask_and_leave("/metrics", 40, "metrics"), ANY),
    Attack("asking for statistics and leaving", _ask_and_leave("/v2/models/stats", 40), ANY),
    Attack(
        "asking for a configuration",
        _flood("/v2/models/identity_fp32/config", "GET", 1),
        ANY,
        nightly=True,
    ),
)
