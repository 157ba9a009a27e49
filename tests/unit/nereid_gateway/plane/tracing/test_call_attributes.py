"""What a root span says of the call that its request came by."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from nereid_gateway.core.request_record import RequestRecord
from nereid_gateway.plane.tracing.call_attributes import CANCELLED, call_attributes
from nereid_gateway.server.call import HttpCall


def http_call(target: bytes, host: bytes = b"", peer: str = "10.0.0.1:7") -> HttpCall:
    call = HttpCall(lambda: None, peer)
    call.method, call.target, call.headers = b"POST", target, {b"host": host}
    return call


def of_http(call: HttpCall, code: int = 0) -> dict[str, object]:
    return dict(call_attributes(RequestRecord("http", 1, call), code))


def test_http() -> None:
    call = http_call(b"/v2/models/m/versions/3/generate?x=1", b"serving.example:8000")
    assert of_http(call) == {
        "http.request.method": "POST",
        "http.route": "/v2/models/{model}/versions/{version}/generate",
        "http.response.status_code": 200,
        "url.path": "/v2/models/m/versions/3/generate",
        "network.protocol.version": "1.1",
        "server.address": "serving.example",
        "server.port": 8000,
        "client.address": "10.0.0.1",
        "client.port": 7,
    }


@pytest.mark.parametrize(("code", "status"), [(5, 404), (14, 503), (3, 400), (CANCELLED, None)])
def test_the_http_status_is_the_one_of_the_response(code: int, status: int | None) -> None:
    call = http_call(b"/v2/models/m/infer")
    assert of_http(call, code).get("http.response.status_code") == status


def test_what_is_not_known_is_left_out() -> None:
    assert call_attributes(RequestRecord("http", 1), 0) == {}
    call = http_call(b"/elsewhere", b"", "unix:/run/nereid")
    call.http_1_0 = True
    assert of_http(call) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/elsewhere",
        "network.protocol.version": "1.0",
        "network.transport": "unix",
    }
    assert "client.address" not in of_http(http_call(b"/v2", peer=""))


@pytest.mark.parametrize(
    ("host", "address", "port"),
    [
        (b"a", "a", None),
        (b"[::1]:80", "::1", 80),
        (b"[::1]", "::1", None),
        (b"a:b", "a:b", None),
    ],
)
def test_hosts(host: bytes, address: str, port: int | None) -> None:
    seen = of_http(http_call(b"/v2", host))
    assert (seen["server.address"], seen.get("server.port")) == (address, port)


class GrpcCall(NamedTuple):
    """What is read of a call."""

    path: str
    peer: str
    local: str = "127.0.0.1:8001"


def test_grpc() -> None:
    call = GrpcCall("/inference.GRPCInferenceService/ModelInfer", "[::2]:9")
    assert call_attributes(RequestRecord("grpc", 1, call), 3) == {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelInfer",
        "rpc.grpc.status_code": 3,
        "server.address": "127.0.0.1",
        "server.port": 8001,
        "client.address": "::2",
        "client.port": 9,
    }
