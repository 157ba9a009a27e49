"""Server on grpcio, which only this module imports. docs/decisions/grpc.md lists its gaps."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from nereid.rpc.grpc.call import CALL_SLOTS, Call
from nereid.rpc.grpc.compression import LEVELS
from nereid.rpc.grpc.handlers import HandlerTasks, routes_of
from nereid.rpc.grpc.server import ServerOptions
from nereid.rpc.grpc.status import Status
from nereid.rpc.http2.sender import LOW_WATER_BYTES
from nereid.rpc.net.address import host_and_port, text_of, unix_path
from nereid.rpc.net.binding import UnixClaim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from nereid.rpc.grpc.handlers import Handlers, StreamHandler
    from nereid.rpc.net.shared_ports import InheritedPort
    from nereid.rpc.net.tls_files import Pems, Tls

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_FOREVER_S = 1 << 30


@dataclass(frozen=True, kw_only=True)
class PingRules:
    """Limits beyond which a peer has sent too many pings (--grpc-http2-*)."""

    max_without_data: int = 2
    min_interval_ms: int = 300_000
    max_strikes: int = 2


class GrpcioServer:
    """An Engine (rpc/grpc/server.py) that grpcio implements."""

    # grpc does not count its connections.
    connections = None

    def __init__(
        self,
        handlers: Handlers,
        options: ServerOptions = ServerOptions(),  # noqa: B008 (frozen)
        pings: PingRules = PingRules(),
    ) -> None:
        self._tasks = HandlerTasks()
        self._methods = _Methods(handlers, self._tasks)
        self._arguments = _arguments(options, pings)
        # A started grpc server takes no more ports, so there is one for each address.
        self._servers: list[grpc.aio.Server] = []
        self._claims: list[UnixClaim] = []

    async def listen(
        self, address: str, tls: Tls | None = None, *, inherited: InheritedPort | None = None
    ) -> str:
        """Listen at one more address. Return the address with its actual port."""
        assert inherited is None, "grpc binds its port itself"
        path = unix_path(address)
        # Without a claim, grpc takes over the Unix socket of a running server.
        claim = UnixClaim(path) if path is not None else None
        server = grpc.aio.server(options=self._arguments)
        server.add_generic_rpc_handlers((self._methods,))
        try:
            if tls is not None:
                port = server.add_secure_port(address, _credentials(tls))
            else:
                port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen at {address}") from error
        await server.start()
        self._servers.append(server)
        if claim is not None:
            claim.bound()
            self._claims.append(claim)
            return address
        return text_of((host_and_port(address)[0], port))

    async def announce_drain(self, limit_s: float, *, listening: bool = False) -> None:
        """Do nothing: grpc sends GOAWAY and refuses new calls only in drain()."""

    async def drain(self, grace_s: float) -> None:
        """Refuse new calls, let calls in flight finish for at most `grace_s`, then close."""
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        await self.close()

    async def close(self) -> None:
        """Cut every connection."""
        await asyncio.gather(*(server.stop(None) for server in self._servers))
        self._servers.clear()
        for claim in self._claims:
            claim.release()
        self._claims.clear()
        await self._tasks.close()


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return TLS credentials. grpc asks for a renewed configuration at every handshake.

    Raises OSError if the root file has revocation lists, which grpc does not read.
    """
    used = tls.pems()
    _refuse_revocation_lists(used)

    def configuration() -> grpc.ServerCertificateConfiguration:
        root = used.root if tls.mutual else None
        return grpc.ssl_server_certificate_configuration([(used.key, used.cert)], root)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        now = tls.pems()
        if now is used:
            return None
        _refuse_revocation_lists(now)
        used = now
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        renewed,  # type: ignore[arg-type]  # documented: None keeps the last configuration
        require_client_authentication=tls.mutual,
    )


def _refuse_revocation_lists(pems: Pems) -> None:
    if b"-----BEGIN X509 CRL-----" in pems.root:
        raise OSError("grpcio's engine cannot read the revocation lists in the root certificates")


def _arguments(options: ServerOptions, pings: PingRules) -> list[tuple[str, int]]:
    arguments = [
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", options.max_concurrent_streams),
        ("grpc.max_metadata_size", options.max_header_list_bytes),
        ("grpc.so_reuseport", int(options.reuse_port)),
    ]
    if options.max_connections is not None:
        limit = options.max_connections
        arguments.append(("grpc.max_allowed_incoming_connections", limit))
    if options.keepalive_interval_s is not None:
        arguments += [
            ("grpc.keepalive_time_ms", int(options.keepalive_interval_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(options.keepalive_timeout_s * 1000)),
            ("grpc.keepalive_permit_without_calls", int(options.keepalive_without_calls)),
        ]
    arguments += [
        ("grpc.http2.max_pings_without_data", pings.max_without_data),
        ("grpc.http2.min_ping_interval_without_data_ms", pings.min_interval_ms),
        ("grpc.http2.max_ping_strikes", pings.max_strikes),
        ("grpc.default_compression_level", LEVELS.index(options.compression)),
    ]
    if options.max_connection_age_s is not None:
        arguments.append(("grpc.max_connection_age_ms", int(options.max_connection_age_s * 1000)))
    if options.max_connection_age_grace_s is not None:
        grace_ms = int(options.max_connection_age_grace_s * 1000)
        arguments.append(("grpc.max_connection_age_grace_ms", grace_ms))
    return arguments


class _Methods(grpc.GenericRpcHandler):
    def __init__(self, handlers: Handlers, tasks: HandlerTasks) -> None:
        self._routes = routes_of(handlers)
        self._admit = handlers.admit
        self._tasks = tasks

    def service(self, details: Any) -> Any:
        route = self._routes.get(details.method)
        if route is None:
            return None
        path, stream = details.method, route.stream
        if stream is not None:

            async def converse(messages: AsyncIterator[bytes], context: Any) -> None:
                await _converse(self._open(path, context), stream, messages)

            return grpc.stream_stream_rpc_method_handler(converse)

        async def response(message: bytes, context: Any) -> bytes:
            call = self._open(path, context)
            if route.unary is not None and not call.done:
                call.run_callback(route.unary, call, message)
            elif route.coroutine is not None and not call.done:
                self._tasks.spawn(call, route.coroutine, message)
            return await _response(call)

        return grpc.unary_unary_rpc_method_handler(response)

    def _open(self, path: str, context: Any) -> GrpcioCall:
        call = GrpcioCall(path, context)
        if self._admit is not None:
            call.run_callback(self._admit, call)
        return call


class GrpcioCall(Call):
    """Call on grpc.aio. Messages to send are queued, because only one coroutine may write."""

    __slots__ = (
        *CALL_SLOTS,
        "_above_low_water",
        "_finished",
        "_queue",
        "_queued_bytes",
        "_wake",
        "context",
        "reading",
    )

    def __init__(self, path: str, context: Any) -> None:
        metadata = tuple((str(k), v) for k, v in context.invocation_metadata() or ())
        remaining = context.time_remaining()
        within = remaining is not None and remaining < _FOREVER_S
        deadline = time.monotonic() + remaining if within else None
        super().__init__(path, _address(context.peer()), metadata, deadline)
        self.context = context
        self.reading = asyncio.Event()
        self.reading.set()
        # `None` stands for the response's headers without a message.
        self._queue: deque[bytes | None] = deque()
        self._queued_bytes = 0
        self._above_low_water = False
        self._wake = asyncio.Event()
        self._finished: tuple[Status, str, tuple[tuple[str, str | bytes], ...]] | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes queued for the writing coroutine."""
        return self._queued_bytes

    def reply(self, message: bytes) -> None:
        """Send the response and end the call with OK."""
        self.send(message)
        self.finish()

    def accept(self) -> None:
        """Send the response's headers."""
        if not self.done:
            self._enqueue(None)

    def send(self, message: bytes, at_once: bool = False) -> None:  # noqa: ARG002 - as Call
        """Queue one message."""
        if not self.done:
            self._enqueue(message)

    def finish(
        self,
        status: Status = Status.OK,
        message: str = "",
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """End the call after the queued messages."""
        if not self.done:
            self._finished = (status, message, tuple(trailers))
            self.mark_done()

    def pause(self) -> None:
        """Stop reading messages of the client."""
        self.reading.clear()

    def resume(self) -> None:
        """Continue to read messages of the client after pause()."""
        self.reading.set()

    async def next(self) -> bytes | None:
        """Return the next message, None for headers only; raise StopAsyncIteration at the end."""
        while not self._queue:
            if self.done:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._queue.popleft()

    def written(self, size: int) -> None:
        """Count a message of `size` bytes as written."""
        self._queued_bytes -= size
        low = self._above_low_water and self._queued_bytes <= LOW_WATER_BYTES
        if low or not self._queued_bytes:
            self._above_low_water = False
            if self.on_writable is not None:
                self.run_callback(self.on_writable)

    async def conclude(self) -> None:
        """Pass the final status to grpc. This raises an exception for any status but OK."""
        if self._finished is None:
            return
        status, message, trailers = self._finished
        if status != Status.OK:
            await self.context.abort(_CODES[int(status)], message, trailers)
        if trailers:
            self.context.set_trailing_metadata(trailers)

    def _enqueue(self, message: bytes | None) -> None:
        self._queue.append(message)
        if message is not None:
            self._queued_bytes += len(message)
            if self._queued_bytes > LOW_WATER_BYTES:
                self._above_low_water = True
        self._wake.set()

    def mark_done(self) -> None:
        """Mark the call as done, and wake the coroutine that writes."""
        super().mark_done()
        self._wake.set()


def _address(peer: str) -> str:
    """Translate "ipv4:host:port" or "ipv6:%5Bhost%5D:port" to the form of text_of()."""
    text = peer.removeprefix("ipv4:").removeprefix("ipv6:")
    return text.replace("%5B", "[").replace("%5D", "]")


async def _response(call: GrpcioCall) -> bytes:
    try:
        message = b""
        with contextlib.suppress(StopAsyncIteration):
            while True:
                message = await call.next() or b""
        await call.conclude()
    except asyncio.CancelledError:
        call.cancel()
        raise
    return message


async def _converse(
    call: GrpcioCall, handler: StreamHandler, messages: AsyncIterator[bytes]
) -> None:
    if not call.done:
        call.run_callback(handler, call)
    reader = asyncio.get_running_loop().create_task(_read(call, messages))
    try:
        with contextlib.suppress(StopAsyncIteration):
            while True:
                message = await call.next()
                if message is None:
                    await call.context.send_initial_metadata(())
                else:
                    await call.context.write(message)
                    call.written(len(message))
        await call.conclude()
    except (asyncio.CancelledError, grpc.aio.BaseError):
        call.cancel()
        raise
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _read(call: GrpcioCall, messages: AsyncIterator[bytes]) -> None:
    async for message in messages:
        await call.reading.wait()
        if call.on_message is not None:
            call.run_callback(call.on_message, message)
    await call.reading.wait()
    if call.on_half_close is not None:
        call.run_callback(call.on_half_close)
