"""An HTTP server whose calls the test responds to, and clients that send raw bytes."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nereid_gateway.server.call import HttpCall
from nereid_gateway.server.connection import HttpConnection
from nereid_gateway.server.limits import HttpLimits
from nereid_gateway.server.server import HttpServer

LIMITS = HttpLimits(
    max_body_bytes=1000,
    max_header_bytes=2000,
    max_chunks=5,
    max_pipelined=3,
    probe_delay_s=0.02,
    probe_interval_s=0.02,
)
WAIT_S = 20


class ConnectionLog:
    """Owner of connections without a server: keeps what they report."""

    def __init__(self) -> None:
        self.statuses: defaultdict[bytes, int] = defaultdict(int)
        self.connected: list[HttpConnection] = []
        self.disconnected: list[HttpConnection] = []

    def on_connected(self, connection: HttpConnection) -> None:
        self.connected.append(connection)

    def on_disconnected(self, connection: HttpConnection) -> None:
        self.disconnected.append(connection)


class HttpSite:
    """A server. /echo responds at once, /crash raises; further calls wait for the test."""

    def __init__(self, limits: HttpLimits) -> None:
        self.server = HttpServer(self.dispatch, limits)
        self.calls: asyncio.Queue[HttpCall] = asyncio.Queue()
        self.cancelled: asyncio.Queue[HttpCall] = asyncio.Queue()
        self.address = ("", 0)
        self.writers: list[asyncio.StreamWriter] = []

    def dispatch(self, call: HttpCall) -> None:
        if call.target == b"/echo":
            call.respond(200, (call.method, b" ", call.body))
        elif call.target == b"/crash":
            raise ZeroDivisionError
        else:
            call.on_cancel = lambda: self.cancelled.put_nowait(call)
            self.calls.put_nowait(call)

    async def next_call(self) -> HttpCall:
        return await asyncio.wait_for(self.calls.get(), WAIT_S)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        self.writers.append(writer)
        return reader, writer

    async def send(self, data: bytes) -> asyncio.StreamReader:
        """On a connection of its own."""
        reader, writer = await self.connect()
        writer.write(data)
        return reader


@asynccontextmanager
async def http_site(limits: HttpLimits = LIMITS) -> AsyncIterator[HttpSite]:
    site = HttpSite(limits)
    bound = await site.server.listen("127.0.0.1:0")
    host, _, port = bound.rpartition(":")
    site.address = (host, int(port))
    try:
        yield site
    finally:
        for writer in site.writers:
            writer.close()
        await site.server.close()
        # Let the transports' closing callbacks run.
        await asyncio.sleep(0)


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Status, head and body of one response."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
    status = int(head.split(b" ", 2)[1])
    match = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    body = await asyncio.wait_for(reader.readexactly(int(match[1])), WAIT_S) if match else b""
    return status, head, body


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the connection is closed."""
    return await asyncio.wait_for(reader.read(), WAIT_S)


def request(target: str = "/echo", body: bytes = b"", *headers: str) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
