"""The generate extension through the gateway's HTTP port."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.support.gateway.gateway_http import ask, connect
from tests.support.gateway.gateway_site import GatewaySite, gateway_site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BODY = b'{"INPUT0":[1,2],"id":"7"}'
REPLY = b'{"OUTPUT0":[1.0,2.0],"id":"7","model_name":"echo","model_version":"1"}'
UNKNOWN = b'{"error":"Request for unknown model: \'nope\' is not found"}'


@pytest.fixture
async def site() -> AsyncIterator[GatewaySite]:
    async with gateway_site() as made:
        yield made


@pytest.mark.parametrize(
    ("model", "status", "event"),
    [("echo", b"200 OK", REPLY), ("fail", b"400 Bad Request", b'{"error":"asked to fail"}')],
)
async def test_events(site: GatewaySite, model: str, status: bytes, event: bytes) -> None:
    reader, writer = await connect(site)
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: x\r\n"
    for _ in range(2):  # the connection is kept
        writer.write(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
        response = await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 5)
        chunk = b"data: %b\n\n" % event
        assert response == (
            b"HTTP/1.1 %b\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (status, len(chunk), chunk)
        )
    writer.close()


async def test_a_request_that_is_not_accepted_begins_no_stream() -> None:
    async with gateway_site(max_pending_requests=1) as site:
        reader, writer = await connect(site)
        body = json.dumps({"INPUT0": 1}).encode()
        for _ in range(2):
            writer.write(
                b"POST /v2/models/hold/generate_stream HTTP/1.1\r\nHost: x\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
        held = await site.scheduler.next_held()
        response = await ask(site, "POST", "/v2/models/hold/generate_stream", body)
        assert response[:2] == (503, "application/json")
        assert b"Exceeds maximum queue size" in response.body
        site.scheduler.link.send(site.scheduler.echo(held))
        assert await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 5)
        writer.close()


async def test_a_disconnect_cancels_the_request(site: GatewaySite) -> None:
    _, writer = await connect(site)
    writer.write(
        b"POST /v2/models/hold/generate HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n"
        b'{"INPUT0":1}'
    )
    held = await site.scheduler.next_held()
    writer.close()
    assert await asyncio.wait_for(site.scheduler.cancelled.get(), 5) == held.id
