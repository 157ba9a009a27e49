"""Sends copies of calls to the server that has not responded to them."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Final

from nereid.rpc import RpcError, SocketChannel
from nereid.rpc.grpc.channel import ChannelOptions
from nereid.rpc.grpc.metadata import decode_pairs
from nereid_adopt.calls.requests import decoded
from nereid_adopt.calls.traffic import Side
from nereid_adopt.copies.decoding import inline_grpc, inline_http
from nereid_adopt.proxy.http_responses import ResponseHeads
from nereid_adopt.proxy.http_server import CutOffError, HttpServerConnection, NoResponseError
from nereid_adopt.proxy.recorder import GrpcReply, HttpReply, pieces_of

if TYPE_CHECKING:
    from nereid_adopt.proxy.recorder import CopiedCall
    from nereid_perf.endpoint import Endpoint

_OWN_HEADERS: Final = frozenset(
    (b"accept-encoding", b"connection", b"content-encoding", b"content-length", b"expect",
     b"inference-header-content-length", b"keep-alive", b"transfer-encoding")
)  # fmt: skip


class NotCopiedError(Exception):
    """Raised if a copy has no response; the text says why."""


class CopySender:
    """Clients of both servers for both protocols."""

    def __init__(
        self,
        http: tuple[Endpoint, Endpoint],
        grpc: tuple[Endpoint, Endpoint],
        timeout_s: float,
    ) -> None:
        self._http = [(endpoint.address, endpoint.client_tls()) for endpoint in http]
        self._timeout_s = timeout_s
        self._heads = ResponseHeads()
        self._idle: dict[Side, list[HttpServerConnection]] = {side: [] for side in Side}
        self.channels = {
            side: SocketChannel(grpc[side].address, ChannelOptions(tls=grpc[side].client_tls()))
            for side in Side
        }

    async def send(self, call: CopiedCall) -> tuple[HttpReply | GrpcReply, float]:
        """Send a call to the other side; return its response and latency in seconds.

        Raises NotCopiedError.
        """
        begin = perf_counter()
        if isinstance(call.reply, HttpReply):
            reply: HttpReply | GrpcReply = await self._send_http(call)
        else:
            reply = await self._send_grpc(call)
        return reply, perf_counter() - begin

    async def close(self) -> None:
        """Close all connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        for channel in self.channels.values():
            await channel.close()

    async def _send_http(self, call: CopiedCall) -> HttpReply:
        # Without content coding, so that this process need not decode responses.
        body, json_bytes = decoded(b"".join(call.request), call.encoding) or b"", call.json_bytes
        if call.inputs or call.outputs:
            body, json_bytes = inline_http(body, json_bytes, call.inputs)
        fields = [field for field in call.headers if field[0].lower() not in _OWN_HEADERS]
        fields.append((b"Content-Length", b"%d" % len(body)))
        if json_bytes:
            fields.append((b"Inference-Header-Content-Length", b"%d" % json_bytes))
        head = b"".join(b"%s: %s\r\n" % field for field in fields)
        target = call.path.encode("latin-1")
        parts = [b"POST %s HTTP/1.1\r\n%s\r\n" % (target, head), body]
        side = call.side.other
        idle = self._idle[side]
        address, tls = self._http[side]
        connection = idle.pop() if idle else HttpServerConnection(address, self._heads, tls)
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await connection.request(parts)
        except TimeoutError:
            connection.close()
            raise NotCopiedError("the copy timed out") from None
        except (NoResponseError, CutOffError) as error:
            connection.close()
            raise NotCopiedError("the other server did not respond") from error
        if connection.is_open:
            idle.append(connection)
        return HttpReply(response.status, pieces_of(response.body or ()), response.json_bytes)

    async def _send_grpc(self, call: CopiedCall) -> GrpcReply:
        message = b"".join(call.request)
        if call.inputs or call.outputs:
            message = inline_grpc(message, call.inputs)
        try:
            response = await self.channels[call.side.other].unary(
                call.path, message, timeout_s=self._timeout_s, metadata=metadata_of(call.headers)
            )
        except RpcError as error:
            if error.status.name in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}:
                raise NotCopiedError("the other server did not respond") from error
            return GrpcReply(None, str(int(error.status)), error.message)
        return GrpcReply((response,))


def metadata_of(
    fields: tuple[tuple[bytes, bytes], ...],
) -> list[tuple[str, str | bytes]]:
    """Return header fields as metadata."""
    return [pair for name, value in fields for pair in decode_pairs(name, value)]
