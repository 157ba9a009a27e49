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
from tests.support.gateway.gateway_http import BODY, INFER, INPUT, ask, connect
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


async def test_a_body_beyond_the_limit_is_refused(site: GatewaySite) -> None:
    for body, headers in (
        (bytes(100_001), {}),
        (gzip.compress(bytes(1_000_000)), {"Content_Encoding": "gzip"}),
    ):
        response = await ask(site, "POST", INFER, body, **headers)
        assert response.status == 400
        assert b"exceeds the maximum allowed input size of 100000" in response.body


async def test_an_unknown_coding_is_refused_with_the_known_ones(site: GatewaySite) -> None:
    response = await ask(site, "POST", INFER, BODY, Content_Encoding="br")
    assert response.status == 501
    assert b"Accept-Encoding: gzip, deflate\r\n" in response.head


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
