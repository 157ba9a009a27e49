"""Responses of the gateway's HTTP port: statuses, content types, texts."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from nereid.services.gateway.http.routes import RouteKind
from tests.support.gateway.gateway_http import BODY, FLOATS, INFER, INPUT, ask, connect
from tests.support.gateway.gateway_site import GatewaySite, gateway_site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ECHOED = (
    b'{"model_name":"echo","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32",'
    b'"shape":[2],"data":[1.0,2.0]}]}'
)


@pytest.fixture
async def site() -> AsyncIterator[GatewaySite]:
    async with gateway_site(http_max_input_size=100_000) as made:
        yield made


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("POST", "/v2", b"GET"),
        ("GET", INFER, b"POST"),
        ("HEAD", "/v2/models/echo/generate", b"POST"),
        ("PUT", "/v2/logging", b"GET, POST"),
    ],
)
async def test_a_wrong_method_is_refused_with_the_right_ones(
    site: GatewaySite, method: str, target: str, allowed: bytes
) -> None:
    response = await ask(site, method, target)
    assert response.status == 405
    assert b"\r\nAllow: %b\r\n" % allowed in response.head


def test_every_route_has_an_endpoint(site: GatewaySite) -> None:
    assert set(site.service._http_front._endpoints) == set(RouteKind) - {RouteKind.NOT_FOUND}


async def test_json_in_and_out(site: GatewaySite) -> None:
    response = await ask(site, "POST", INFER, BODY)
    assert response[:2] == (200, "application/json")
    assert response.body == ECHOED


@pytest.mark.parametrize(
    ("method", "target", "status", "content_type", "body"),
    [
        ("GET", "/v2/health/live", 200, "text/plain", b""),
        ("GET", "/v2/health/ready", 200, "text/plain", b""),
        ("GET", "/v2/models/echo/ready", 200, "text/plain", b""),
        ("GET", "/v2/models/nope/ready", 400, "text/plain", b'{"error":"Model version not ready"}'),
        ("POST", "/v2/health/live", 405, "text/plain", b'{"error":"Method Not Allowed"}'),
        ("HEAD", "/v2/health/live", 405, "text/plain", b""),
        ("GET", INFER, 405, "text/plain", b'{"error":"Method Not Allowed"}'),
        ("PUT", "/v2", 405, "application/json", b'{"error":"Method Not Allowed"}'),
        ("GET", "/v2/repository/index", 405, "application/json", b'{"error":"Method Not Allowed"}'),
        ("GET", "/", 404, "text/plain", b'{"error":"Not Found"}'),
        ("GET", "/v2/models/echo/versions/x", 404, "text/plain", b'{"error":"Not Found"}'),
        (
            "POST",
            "/v2/models/nope/infer",
            404,
            "text/plain",
            b'{"error":"Request for unknown model: \'nope\' is not found"}',
        ),
        (
            "GET",
            "/v2/models/nope",
            404,
            "application/json",
            b'{"error":"Request for unknown model: \'nope\' is not found"}',
        ),
        ("GET", "/v2/systemsharedmemory/status", 200, "application/json", b"[]"),
    ],
)
async def test_routes(
    site: GatewaySite, method: str, target: str, status: int, content_type: str, body: bytes
) -> None:
    response = await ask(site, method, target)
    assert (response.status, response.content_type, response.body) == (status, content_type, body)


async def test_an_unknown_model_is_reported_before_an_invalid_body(site: GatewaySite) -> None:
    for body, headers in (
        (b"{", {}),
        (BODY, {"Content_Encoding": "br"}),
        (b"x", {"Inference_Header_Content_Length": "-5"}),
        (b"x", {"Inference_Header_Content_Length": "0"}),
    ):
        response = await ask(site, "POST", "/v2/models/nope/infer", body, **headers)
        assert response[:2] == (404, "text/plain")
        assert b"Request for unknown model: 'nope' is not found" in response.body


async def test_invalid_bodies(site: GatewaySite) -> None:
    response = await ask(site, "POST", INFER, b"{")
    assert response[:2] == (500, "application/json")
    assert response.body == (
        b'{"error":"failed to parse the request JSON buffer: Missing a name for object member.'
        b' at 1"}'
    )
    response = await ask(site, "POST", INFER, BODY, Inference_Header_Content_Length="-1")
    assert response[:2] == (400, "text/plain")
    assert b"inference header size should be in range (0, %d), got: -1" % len(BODY) in response.body
    response = await ask(site, "POST", INFER, BODY, Content_Encoding="br")
    assert response[:2] == (501, "text/plain")
    assert b"Accept-Encoding: gzip, deflate\r\n" in response.head
    response = await ask(site, "POST", INFER, b"", Content_Encoding="gzip")
    assert response == (400, "text/plain", response.head, b'{"error":"nothing to be decompressed"}')
    bomb = gzip.compress(bytes(1_000_000))
    response = await ask(site, "POST", INFER, bomb, Content_Encoding="gzip")
    assert response.status == 400
    assert b"exceeds the maximum allowed input size of 100000" in response.body
    response = await ask(site, "POST", INFER, bytes(100_001))
    assert response.status == 400
    assert response.body == (
        b'{"error":"request JSON size of 100001 bytes exceeds the maximum allowed input size of'
        b' 100000 bytes. Use --http-max-input-size to increase the limit."}'
    )


async def test_half_precision_output_as_json_is_refused_after_the_model_ran(
    site: GatewaySite,
) -> None:
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "shape": [1],
                    "datatype": "FP16",
                    "parameters": {"binary_data_size": 2},
                }
            ]
        }
    ).encode()
    response = await ask(
        site,
        "POST",
        INFER,
        header + b"\0\0",
        Inference_Header_Content_Length=str(len(header)),
    )
    assert response[:2] == (400, "text/plain")
    assert b"sending FP16 data via JSON is not supported" in response.body


@pytest.mark.parametrize("length", ["0", "x", ""])
async def test_a_raw_request(site: GatewaySite, length: str) -> None:
    response = await ask(site, "POST", INFER, FLOATS, Inference_Header_Content_Length=length)
    assert response[:2] == (200, "application/octet-stream")
    match = re.search(rb"Inference-Header-Content-Length: (\d+)", response.head)
    assert match
    header = json.loads(response.body[: int(match[1])])
    assert header["outputs"] == [
        {
            "name": "OUTPUT0",
            "datatype": "FP32",
            "shape": [2],
            "parameters": {"binary_data_size": 8},
        }
    ]
    assert response.body[int(match[1]) :] == FLOATS


async def test_an_empty_body_is_a_raw_request_without_elements(site: GatewaySite) -> None:
    response = await ask(site, "POST", INFER)
    assert response[:2] == (200, "application/json")
    assert json.loads(response.body)["outputs"][0]["shape"] == [0]


async def test_compression(site: GatewaySite) -> None:
    packed = gzip.compress(BODY)
    response = await ask(
        site, "POST", INFER, packed, Content_Encoding="gzip", Accept_Encoding="gzip"
    )
    assert response.status == 200
    assert b"Content-Encoding: gzip\r\n" in response.head
    assert gzip.decompress(response.body) == ECHOED
    # Errors are not compressed.
    response = await ask(site, "POST", INFER, b"{", Accept_Encoding="gzip")
    assert response.status == 500
    assert b"Content-Encoding" not in response.head
    # Large bodies are compressed and decompressed in a thread.
    large = json.dumps({"inputs": [{**INPUT, "shape": [20000], "data": [0] * 20000}]}).encode()
    noise = gzip.compress(large, 0)
    response = await ask(
        site, "POST", INFER, noise, Content_Encoding="gzip", Accept_Encoding="deflate"
    )
    assert response.status == 200


async def test_index_filters(site: GatewaySite) -> None:
    response = await ask(site, "POST", "/v2/repository/index", b'{"ready":true}')
    assert [each["name"] for each in json.loads(response.body)] == ["echo", "hold", "fail"]
    for body in (b"", b"[]", b"5"):
        response = await ask(site, "POST", "/v2/repository/any/index", body)
        assert len(json.loads(response.body)) == 5
    response = await ask(site, "POST", "/v2/repository/index", b'{"ready":"x"}')
    assert response.body == b'{"error":"Invalid value for \'ready\': expected a boolean"}'
    response = await ask(site, "POST", "/v2/repository/index", b"{")
    assert response.status == 500


async def test_pipelined_inferences_keep_their_order(site: GatewaySite) -> None:
    reader, writer = await connect(site)
    head = "POST /v2/models/{}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"
    for model in ("hold", "echo", "hold", "fail"):
        writer.write(head.format(model, len(BODY)).encode() + BODY)
    held = [await site.scheduler.next_held() for _ in range(2)]
    for request in reversed(held):
        site.scheduler.link.send(site.scheduler.echo(request))
    names = []
    for _ in range(4):
        response = await asyncio.wait_for(reader.readuntil(b"}"), 5)
        names.append(re.search(rb'"model_name":"(\w+)"|asked to (fail)', response))
        rest = 0 if b"asked to fail" in response else 2
        await reader.readexactly(rest)
    assert [(match[1] or match[2]) for match in names if match] == [
        b"hold",
        b"echo",
        b"hold",
        b"fail",
    ]
    writer.close()


@pytest.mark.parametrize("reset", [True, False])
async def test_a_disconnect_cancels_the_request(site: GatewaySite, reset: bool) -> None:
    _, writer = await connect(site)
    head = f"POST /v2/models/hold/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n"
    writer.write(head.encode() + BODY)
    held = await site.scheduler.next_held()
    if reset:
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    assert await asyncio.wait_for(site.scheduler.cancelled.get(), 5) == held.id
    # A response that comes all the same is dropped and does no harm.
    site.scheduler.link.send(site.scheduler.echo(held))
    assert (await ask(site, "POST", INFER, BODY)).status == 200


async def test_readiness_follows_the_scheduler(site: GatewaySite) -> None:
    site.scheduler.ready = False
    response = await ask(site, "GET", "/v2/health/ready")
    assert (response.status, response.body) == (400, b"")
    assert (await ask(site, "GET", "/v2/health/live")).status == 200
    site.scheduler.ready = True
    site.scheduler.link.close()
    while (await ask(site, "GET", "/v2/health/ready")).status != 400:
        await asyncio.sleep(0)
