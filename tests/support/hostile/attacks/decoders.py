"""Attacks on the processes that decode and encode for others as well."""

from __future__ import annotations

import gzip
import json
import time
from contextlib import ExitStack

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
from tests.support.hostile.raw_clients import HttpClient, post
from tests.support.hostile.sending import INFER, Make, http_body

_MIB = 1 << 20
_BYTES_INFER = INFER.replace("fp32", "bytes")
_HEADER_BYTES = 200
_LENGTH = f"Inference-Header-Content-Length: {_HEADER_BYTES}"


def _binary(datatype: str, elements: int, content: bytes) -> bytes:
    tensor = {
        "name": "INPUT0",
        "shape": [1, elements],
        "datatype": datatype,
        "parameters": {"binary_data_size": len(content)},
    }
    return json.dumps({"inputs": [tensor]}).encode().ljust(_HEADER_BYTES) + content


def _string(size: int) -> bytes:
    return _binary("BYTES", 1, size.to_bytes(4, "little") + b"\1" * size)


def _floats(count: int) -> bytes:
    return _binary("FP32", count, b"\0\0\x9a\x3f" * count)


def _nested(count: int) -> bytes:
    start = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":['
    return gzip.compress(start + b"[]," * count + b"1]}]}")


def _numbers(count: int) -> bytes:
    values = b",".join([b"1.5"] * count)
    text = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,%d],"data":[%b]}]}'
    return gzip.compress(text % (count, values))


def _at_once(count: int, make: Make, *lines: str, patience_s: float = 60) -> Client:
    """The same request on several connections, which hang up when their patience is over."""

    def send(target: Target, request: bytes) -> str:
        with ExitStack() as stack:
            clients = [HttpClient(target.http, target.source) for _ in range(count)]
            for client in clients:
                stack.callback(client.close)
                client.pump(request)
            until_s = time.monotonic() + patience_s
            for client in clients:
                client.pump(until=lambda: False, limit_s=until_s - time.monotonic())
            return clients[-1].outcome

    return Prepared(lambda: post(INFER, make(), *lines), send)


_GZIP = "Content-Encoding: gzip"
# Each with its harmless twin.
ATTACKS = (
    Attack(
        "JSON responses of 8 million floats",
        http_body(lambda: _floats(8 * _MIB), INFER, _LENGTH),
        SERVED,
        more_mib=400,
    ),
    Attack(
        "JSON response with a string of 144 MB",
        http_body(lambda: _string(24 * _MIB), _BYTES_INFER, _LENGTH),
        REFUSED,
        more_mib=200,
    ),
    Attack(
        "JSON response of 64,000 floats",
        http_body(lambda: _floats(64_000), INFER, _LENGTH),
        SERVED,
    ),
    Attack(
        "six times 6 KB that inflate to 6 MB of JSON",
        _at_once(6, lambda: _nested(2_000_000), _GZIP),
        ENDED,
        more_mib=300,
    ),
    Attack(
        "six times 12 KB that inflate to 12 MB of JSON, and hang up",
        _at_once(6, lambda: _nested(4_000_000), _GZIP, patience_s=1.2),
        ANY,
        more_mib=300,
    ),
    Attack("six times 40 KB of JSON", _at_once(6, lambda: _numbers(10_000), _GZIP), SERVED),
)
