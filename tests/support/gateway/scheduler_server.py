"""A scheduler behind a real socket, and a client of gateways in front of it."""

from __future__ import annotations

import asyncio
import json

from nereid.core.methods import INFER_PATH
from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import CachedModels, Notice
from nereid.rpc import Call, Handlers, Server, accept_link
from tests.support.gateway.gateway_site import EchoScheduler

BODY = json.dumps(
    {"inputs": [{"name": "INPUT0", "shape": [2], "datatype": "INT32", "data": [1, 2]}]}
).encode()


class SchedulerServer(EchoScheduler):
    """The echo scheduler behind a socket; it can be ended and started again."""

    def __init__(self, address: str, *greeting: Notice) -> None:
        """greeting: what it sends to each gateway first."""
        super().__init__()
        self.greeting = greeting or (CachedModels(()),)
        self._address = address
        self._server: Server | None = None
        self.linked = asyncio.Event()

    async def start(self) -> None:
        table = self.handlers()
        handlers = Handlers(async_unary=table.async_unary, stream={INFER_PATH: self._accept})
        self._server = Server(handlers)
        await self._server.listen(self._address)

    def _accept(self, call: Call) -> None:
        codec = _SchedulerCodec()
        self.link = accept_link(call, codec, on_items=self.on_items, on_down=self.linked.clear)
        for notice in self.greeting:
            self.link.send(notice)
        self.linked.set()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()


class _SchedulerCodec:
    """Responses to frames, frames to requests."""

    def __init__(self) -> None:
        out = ResponseCodec()
        self.size_bytes, self.encode = out.size_bytes, out.encode
        self.decode = RequestCodec().decode


async def post(address: str, model: str) -> tuple[int, bytes]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
    response = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return int(response.split(b" ", 2)[1]), response.partition(b"\r\n\r\n")[2]
