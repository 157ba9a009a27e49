"""Restricted APIs and forwarded headers, through both ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from nereid.pb import kserve_pb2
from tests.support.gateway.gateway_http import BODY, INFER, ask, connect
from tests.support.gateway.gateway_site import GatewaySite, gateway_site

SERVICE = "/inference.GRPCInferenceService/"


@pytest.fixture
async def restricted() -> AsyncIterator[GatewaySite]:
    async with gateway_site(
        http_restricted_api=("health:Open=sesame", "inference:key=k"),
    ) as made:
        yield made


@pytest.mark.parametrize(
    ("method", "target", "headers", "status"),
    [
        ("GET", "/v2/health/live", {}, 403),
        ("GET", "/v2/health/live", {"open": "sesame"}, 200),
        ("POST", INFER, {}, 403),
        ("POST", INFER, {"key": "k"}, 200),
        ("GET", "/v2", {}, 200),
        ("GET", "/v2/nope", {}, 404),
    ],
)
async def test_restricted_http(
    restricted: GatewaySite, method: str, target: str, headers: dict[str, str], status: int
) -> None:
    response = await ask(restricted, method, target, BODY if target == INFER else b"", **headers)
    assert response.status == status
    if status == 403:
        header = b"key" if target == INFER else b"Open"
        assert response.content_type == "text/plain"
        assert b"expecting header '%b'" % header in response.body


def message(**fields: Any) -> bytes:
    request = kserve_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[b"\0\0\0\0"])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    for key, value in fields.items():
        request.parameters[key].string_param = value
    return request.SerializeToString()


async def call(site: GatewaySite, path: str, data: bytes = b"", **metadata: str) -> Any:
    """The reply's bytes, or code and text of the failure."""
    pairs = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
    async with grpc.aio.insecure_channel(site.grpc) as channel:
        try:
            method: Any = channel.unary_unary(path)
            return await method(data, metadata=pairs, timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details()


async def test_restricted_grpc() -> None:
    refusal = (
        "UNAVAILABLE",
        "This protocol is restricted, expecting header 'triton-grpc-protocol-key'",
    )
    opens = {"triton_grpc_protocol_key": "k"}
    async with gateway_site(
        grpc_restricted_protocol=("health,inference,model-repository:Key=k",)
    ) as site:
        for path, data in (
            (SERVICE + "ServerLive", b""),
            (SERVICE + "ModelInfer", message()),
            ("/grpc.health.v1.Health/Check", b""),
        ):
            assert await call(site, path, data) == refusal
            wrong = await call(site, path, data, triton_grpc_protocol_key="K")
            assert wrong == refusal
            assert await call(site, path, data, **opens) != refusal
        assert isinstance(await call(site, SERVICE + "ModelInfer", message(), **opens), bytes)
        assert isinstance(await call(site, SERVICE + "ServerMetadata"), bytes)
        async with grpc.aio.insecure_channel(site.grpc) as channel:
            stream: Any = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter(()), timeout=5)
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await stream.read()
            assert (failure.value.code().name, failure.value.details()) == refusal


async def test_headers_become_parameters_over_http() -> None:
    async with gateway_site(http_header_forward_pattern="^x-") as site:
        reader, writer = await connect(site)
        head = (
            b"POST %b HTTP/1.1\r\nHost: x\r\nX-First: 1\r\nx-LAST: a b\r\nx-LAST: c\r\nO-x-: 1\r\n"
        )
        # The second time the head is known by its bytes.
        for path, body in ((INFER.encode(), BODY),) * 2 + (
            (b"/v2/models/echo/generate", b'{"INPUT0":[1]}'),
        ):
            length = b"Content-Length: %d\r\n\r\n" % len(body)
            writer.write(head % path + length + body)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"}" if b"generate" in path else b"]}")
        writer.close()
        for request in site.scheduler.received:
            assert request.parameters == {"X-First": "1", "x-LAST": "c"}
        assert len(site.scheduler.received) == 3


async def test_metadata_becomes_parameters_over_grpc() -> None:
    async with gateway_site(grpc_header_forward_pattern="my|agent") as site:
        response = await call(
            site, SERVICE + "ModelInfer", message(my="own", b="2"), my="meta", q="3"
        )
        assert isinstance(response, bytes)
        parameters = site.scheduler.received[0].parameters
        assert parameters is not None
        assert "grpc-python" in str(parameters.pop("user-agent"))
        assert parameters == {"my": "meta", "b": "2"}
        async with grpc.aio.insecure_channel(site.grpc) as channel:
            method: Any = channel.stream_stream(SERVICE + "ModelStreamInfer")
            stream = method(iter([message(), message()]), metadata=(("my", "meta"),), timeout=5)
            assert [reply async for reply in stream]
        in_stream = [each.parameters for each in site.scheduler.received[1:]]
        assert len(in_stream) == 2
        assert all(each and each["my"] == "meta" for each in in_stream)


# Each API's header is one that the calls below do not have.
_ALL_APIS = "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace"
_TARGETS = {
    "GET /v2": b"",
    "GET /v2/health/live": b"",
    "GET /v2/models/echo": b"",
    "GET /v2/models/echo/ready": b"",
    "GET /v2/models/echo/config": b"",
    "GET /v2/models/echo/stats": b"",
    "GET /v2/models/stats": b"",
    "POST /v2/models/echo/infer": BODY,
    "POST /v2/models/echo/versions/1/infer": BODY,
    "POST /v2/models/echo/generate": b'{"INPUT0":[1]}',
    "POST /v2/models/echo/generate_stream": b'{"INPUT0":[1]}',
    "POST /v2/repository/index": b"",
    "POST /v2/repository/models/echo/load": b"",
    "POST /v2/repository/models/echo/unload": b"",
    "GET /v2/systemsharedmemory/status": b"",
    "POST /v2/systemsharedmemory/unregister": b"",
    "GET /v2/trace/setting": b"",
    "GET /v2/logging": b"",
}


def _spellings(target: str) -> list[str]:
    """Other ways to write a path that a server or a proxy may take for the same."""
    version, _, rest = target.removeprefix("/").partition("/")
    parts = [
        target,
        f"{target}/",
        f"/{target}",
        f"/.{target}",
        f"/x/..{target}",
        f"/{version}//{rest}",
        f"/{version}/./{rest}",
        f"{target}?x=1",
        f"{target}#x",
        f"{target};x=1",
        f"{target}%00",
        f"{target}%20",
        f"{target}%2f",
        target.upper(),
        target.replace("v2", "%76%32"),
        target.replace("/", "%2f"),
        target.replace("e", "%65"),
        target.replace("/", "\\"),
        f"http://x{target}",
        f"http://user@x{target}",
        f"HTTPS://y:1{target}?x",
        f"http://x/%2e{target}",
    ]
    return list(dict.fromkeys(parts))


async def _status(site: GatewaySite, method: str, target: str, body: bytes, **headers: str) -> int:
    """The status of a response, which may be a stream."""
    reader, writer = await connect(site)
    lines = [f"{method} {target} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return int(head.split(b" ")[1])


async def test_no_spelling_of_a_path_gets_around_a_restriction() -> None:
    apis = f"{_ALL_APIS},logging:Open=sesame"
    others = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
    async with gateway_site(http_restricted_api=(apis,), http_header_forward_pattern=".*") as site:
        for request, body in _TARGETS.items():
            method, _, target = request.partition(" ")
            opened = await _status(site, method, target, body, Open="sesame")
            assert opened not in {403, 404, 405}, request
            reached = len(site.scheduler.received)
            for spelt in _spellings(target):
                for header in ({}, {"Open": "Sesame"}, {"Open_": "sesame"}, {"X_Open": "sesame"}):
                    status = await _status(site, method, spelt, body, **header)
                    assert status in {400, 403, 404, 405}, (spelt, status)
            for other in others:
                forged = {"X_Http_Method_Override": method, "X_Original_Url": "/v2/health"}
                status = await _status(site, other, target, body, **forged)
                assert status in {400, 403, 404, 405}, (other, target, status)
            assert len(site.scheduler.received) == reached
