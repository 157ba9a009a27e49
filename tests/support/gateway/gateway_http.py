"""A client of the gateway's HTTP port that sends raw bytes."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from typing import NamedTuple

from tests.support.gateway.gateway_site import GatewaySite

FLOATS = struct.pack("<2f", 1, 2)
INPUT = {"name": "INPUT0", "shape": [2], "datatype": "FP32"}
BODY = json.dumps({"inputs": [{**INPUT, "data": [1, 2]}]}).encode()
INFER = "/v2/models/echo/infer"
LIMIT_S = 10


class At(NamedTuple):
    """Another HTTP port than the site's own."""

    http: str


class Response(NamedTuple):
    status: int
    content_type: str
    head: bytes
    body: bytes


async def connect(site: GatewaySite | At) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = site.http.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def read_response(
    reader: asyncio.StreamReader, *, with_body: bool = True
) -> tuple[bytes, bytes]:
    """Head and body of the next response on a connection."""
    async with asyncio.timeout(LIMIT_S):
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"\r\nContent-Length: (\d+)", head)
        assert size
        return head, await reader.readexactly(int(size[1]) if with_body else 0)


async def ask(
    site: GatewaySite | At, method: str, target: str, body: bytes = b"", **headers: str
) -> Response:
    """One request on a connection of its own."""
    reader, writer = await connect(site)
    lines = [f"{method} {target} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    head, response = await read_response(reader, with_body=method != "HEAD")
    writer.close()
    content_type = re.search(rb"Content-Type: (\S+)", head)
    assert content_type
    return Response(int(head.split(b" ")[1]), content_type[1].decode(), head, response)
