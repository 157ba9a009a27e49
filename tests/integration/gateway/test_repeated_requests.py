"""Requests that repeat on one connection get what each would get on a connection of its own."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from typing import Any

import pytest

from tests.support.gateway.gateway_http import FLOATS, INFER, INPUT, connect, read_response
from tests.support.gateway.gateway_site import GatewaySite

HEADER = json.dumps(
    {
        "inputs": [{**INPUT, "parameters": {"binary_data_size": 8}}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }
)
TWO = json.dumps(
    {
        "parameters": {"binary_data_output": True},
        "inputs": [
            {**INPUT, "parameters": {"binary_data_size": 8}},
            {**INPUT, "name": "INPUT1", "shape": [1], "parameters": {"binary_data_size": 4}},
        ],
    }
)


def request(
    header: str | None = HEADER,
    raw: bytes = FLOATS,
    *lines: str,
    target: str = INFER,
    text: str | None = None,
) -> bytes:
    """text: what the body begins with, if not the header whose length is announced."""
    head = [f"POST {target} HTTP/1.1", "Host: x", *lines]
    if header is not None:
        head.append(f"Inference-Header-Content-Length: {len(header)}")
        raw = (header if text is None else text).encode() + raw
    return "\r\n".join([*head, f"Content-Length: {len(raw)}"]).encode() + b"\r\n\r\n" + raw


async def responses(site: GatewaySite, requests: list[bytes]) -> list[bytes]:
    """To requests that are sent one after the other on one connection."""
    reader, writer = await connect(site)
    found = []
    for each in requests:
        writer.write(each)
        found.append(b"".join(await read_response(reader)))
    writer.close()
    return found


OTHER_NAME = HEADER.replace("INPUT0", "INPUT7")
CASES: dict[str, list[bytes]] = {
    "other tensors": [request(), request(), request(raw=struct.pack("<2f", 8, 9)), request()],
    "two tensors": [request(TWO, FLOATS + bytes([byte] * 4)) for byte in range(4)],
    "another header": [request(), request(), request(text=OTHER_NAME), request()],
    "a malformed header": [request(), request(), request(text="x" * len(HEADER)), request()],
    "all JSON": [request(None, json.dumps({"inputs": [{**INPUT, "data": [1, 2]}]}).encode())] * 4,
    "the same id": [request('{"id": "a", ' + HEADER[1:])] * 4,
    "parameters": [request('{"parameters": {"a": 1}, ' + HEADER[1:])] * 4,
    "outputs as JSON": [request(HEADER.replace("true", "false"))] * 4,
    "a closing one": [request()] * 3 + [request(HEADER, FLOATS, "Connection: close")],
    "compressed responses": [request(HEADER, FLOATS, "Accept-Encoding: gzip")] * 4,
    "of another model": [request(), request(), request(target="/v2/models/x/infer"), request()],
    "of one trace": [request(HEADER, FLOATS, f"Traceparent: 00-{1:032x}-{2:016x}-01")] * 4,
    "failing": [request(target="/v2/models/fail/infer")] * 4,
}


@pytest.mark.parametrize("name", sorted(CASES))
async def test_responses_are_those_of_separate_connections(site: GatewaySite, name: str) -> None:
    requests = CASES[name]
    alone = [(await responses(site, [each]))[0] for each in requests]
    assert await responses(site, requests) == alone
    both: Any = site.scheduler.received
    received = [(each.head, each.payloads, each.parameters, each.trace_context) for each in both]
    assert received[len(requests) :] == received[: len(requests)]


async def test_what_is_called_compressed_is_never_read_as_it_is(site: GatewaySite) -> None:
    """Not even if it is what others of its head were after inflating them."""
    plain = request()
    body = plain.partition(b"\r\n\r\n")[2]

    def compressed(content: bytes) -> bytes:
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
        head += f"Inference-Header-Content-Length: {len(HEADER)}\r\n"
        return head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content

    # As long as the body: then the heads are the same.
    packed = gzip.compress(body)
    stored = gzip.compress(body, compresslevel=0)
    for content in (packed, stored):
        found = await responses(
            site, [*[compressed(content)] * 3, compressed((body * 2)[: len(content)])]
        )
        assert [each.split(b" ")[1] for each in found] == [b"200"] * 3 + [b"400"]
        assert found[0].endswith(FLOATS)


async def test_each_of_repeated_requests_gets_its_own_times(site: GatewaySite) -> None:
    found = await responses(site, [request(HEADER, FLOATS, "Nereid-Timing: 1")] * 4)
    assert all(b"Server-Timing: network;dur=" in each for each in found)


async def test_a_draining_gateway_closes_after_a_repeated_request(site: GatewaySite) -> None:
    reader, writer = await connect(site)
    hold = request(target="/v2/models/hold/infer")
    for number in range(4):
        writer.write(hold)
        held = await site.scheduler.next_held()
        if number == 3:
            site.service._http.begin_drain()
        site.scheduler.link.send(site.scheduler.echo(held))
        head, _ = await read_response(reader)
        assert (b"Connection: close" in head) == (number == 3)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
