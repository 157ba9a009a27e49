"""gRPC calls that the proxy passes on: unary ones as a whole, all others as they arrive."""

# layout: compiled

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.grpc.messages import MessageReader, MessageStream
from nereid.rpc.grpc.metadata import decode_message, encode_status, literal_at
from nereid.rpc.grpc.status import Status
from nereid.rpc.http2.frames import Code
from nereid.rpc.net.dialing import Dialer
from nereid.rpc.net.tls_files import reason
from nereid_adopt.calls.kinds import CallKind, grpc_call
from nereid_adopt.calls.requests import NO_FACTS, grpc_facts, grpc_leading_facts
from nereid_adopt.calls.traffic import Side
from nereid_adopt.proxy.held_bytes import NO_SPACE, Holder
from nereid_adopt.proxy.http2_streams import Http2ClientConnection, Http2ServerConnection
from nereid_adopt.proxy.http2_transport import StreamProtocol
from nereid_adopt.proxy.http_server import CONNECT_TIMEOUT_S
from nereid_adopt.proxy.proxy_stream import StreamOwner
from nereid_adopt.proxy.recorder import NO_REGION, CopiedCall, GrpcReply, StreamEvent, piece_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.grpc.messages import AllocateBuffer
    from nereid.rpc.grpc.status import RpcError
    from nereid.rpc.net.inflation import Inflation
    from nereid.rpc.net.tls_files import Tls
    from nereid_adopt.calls.traffic import SequenceStep
    from nereid_adopt.proxy.proxy_stream import Block, ProxyStream
    from nereid_adopt.proxy.site import Site

_UNAVAILABLE: Final = b"%d" % Status.UNAVAILABLE
_OK: Final = b"0"
_UNREACHABLE: Final = "the server cannot be reached"
# Length of the prefix of a message.
_PREFIX_BYTES: Final = 5
_ATTEMPTS: Final = 2
# Connections that may be closed while a call waits for a stream.
_DIALS: Final = 3
# So much of a request that is not kept has its model and parameters.
_BEGIN_BYTES: Final = 16384
_LOST: Final = "the connection to the server was lost"
_HEAD: Final = b"\x88" + literal_at(31, b"application/grpc")


class GrpcClient:
    """One client's connection, with connections of its own to both servers."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.draw = site.traffic.draw_connection()
        self.servers = tuple(
            GrpcServer(address, self._on_connected, tls)
            for address, tls in zip(site.grpc_addresses, site.grpc_tls, strict=True)
        )
        self.tasks: set[asyncio.Task[None]] = set()
        self._protocol: StreamProtocol[Http2ClientConnection] | None = None
        self._found: list[bytes] = []
        self._reader = Messages(self._found.append, site.max_copied_bytes)

    def make_protocol(self) -> StreamProtocol[Http2ClientConnection]:
        """Return the protocol of the client's connection."""
        protocol = StreamProtocol(
            partial(Http2ClientConnection, on_stream=self._on_stream, on_closed=self._on_closed)
        )
        self._protocol = protocol
        self.site.connections.add(protocol)
        return protocol

    def _on_stream(self, stream: ProxyStream, head: Block) -> UnaryCall | StreamCall:
        path = head.path
        kind = grpc_call(path)
        if kind is CallKind.INFER or kind is CallKind.CHANGE:
            return UnaryCall(self, stream, head, path, kind)
        return StreamCall(self, stream, head, path, copied=kind is CallKind.STREAM)

    def _on_closed(self) -> None:
        if self._protocol is not None:
            self.site.connections.discard(self._protocol)
        for task in tuple(self.tasks):
            task.cancel()
        for server in self.servers:
            server.close()

    def _on_connected(self, server: Http2ServerConnection) -> None:
        assert self._protocol is not None
        client = self._protocol.connection
        if client.leaving:
            server.writer.abort()
            return
        client.peers.append(server)
        server.peers.append(client)

    def send_request(
        self, side: Side, head: Block, content: list[bytes], response: _Response
    ) -> None:
        """Send a whole request to one side."""
        connection = self.servers[side].ready
        if connection is None:
            self.spawn(self._connect_and_open(side, response, head, content))
        else:
            response.server = connection.request(head.encoded, content, response)

    async def _connect_and_open(
        self, side: Side, response: _Response, head: Block, content: list[bytes]
    ) -> None:
        try:
            connection = await self.servers[side].connect()
        except OSError:
            if not response.is_done:
                response.refuse()
            return
        if not response.is_done:
            response.server = connection.request(head.encoded, content, response)

    def message_of(self, head: Block | None, content: list[bytes]) -> bytes | None:
        """Return the message in the content of a unary call, or `None` if it is damaged."""
        if len(content) == 1:
            message = whole_message(content[0])
            if message is not None:
                return message
        self._found.clear()
        self._reader.begin(head)
        for piece in content:
            self._reader.feed(piece)
        return self._found[0] if len(self._found) == 1 else None

    def reply_of(self, response: _Response, content: list[bytes]) -> GrpcReply:
        """Return a complete response as it is compared."""
        if response.status == _OK:
            message = self.message_of(response.head, content)
            return GrpcReply(None if message is None else (piece_of(message),))
        assert response.trailers is not None
        text = decode_message(response.trailers.get(b"grpc-message") or b"")
        return GrpcReply(None, response.status.decode("latin-1"), text)

    def spawn(self, work: Any) -> None:
        """Run a coroutine until it ends, or the client's connection does."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class GrpcServer:
    """Connection to a server over HTTP/2, dialled when it is needed."""

    def __init__(
        self,
        address: str,
        on_connected: Callable[[Http2ServerConnection], None],
        tls: Tls | None = None,
    ) -> None:
        self._address = address
        self._on_connected = on_connected
        self._tls = tls
        self._dialer = Dialer(address, CONNECT_TIMEOUT_S)
        self._connection: Http2ServerConnection | None = None
        self._dialing: asyncio.Task[StreamProtocol[Http2ServerConnection]] | None = None

    async def connect(self) -> Http2ServerConnection:
        """Return a usable connection that has a slot for a stream; may raise OSError."""
        for _ in range(_DIALS):
            connection = self._connection
            if connection is None or not connection.usable:
                if self._dialing is None:
                    self._dialing = asyncio.ensure_future(self._dialer.connect(_dial, self._tls))
                    self._dialing.add_done_callback(self._on_dialed)
                connection = (await asyncio.shield(self._dialing)).connection
            free = asyncio.Event()
            connection.when_free(free.set)
            await free.wait()
            if connection.usable:
                return connection
        raise OSError(f"{self._address} closes its connections")

    @property
    def ready(self) -> Http2ServerConnection | None:
        """A connection that takes a stream at once, if there is one."""
        connection = self._connection
        return connection if connection is not None and connection.has_free_slot else None

    def close(self) -> None:
        """Close the connection."""
        if self._dialing is not None:
            self._dialing.cancel()
        if self._connection is not None:
            self._connection.writer.abort()

    def _on_dialed(self, task: asyncio.Task[StreamProtocol[Http2ServerConnection]]) -> None:
        self._dialing = None
        if not task.cancelled() and task.exception() is None:
            self._connection = connection = task.result().connection
            self._on_connected(connection)


def _dial() -> StreamProtocol[Http2ServerConnection]:
    return StreamProtocol(Http2ServerConnection)


def whole_message(content: bytes) -> bytes | None:
    """Return the message if the content is one that is not compressed, else `None`."""
    if len(content) < _PREFIX_BYTES or content[0]:
        return None
    size = content[1] << 24 | content[2] << 16 | content[3] << 8 | content[4]
    return content[_PREFIX_BYTES:] if size == len(content) - _PREFIX_BYTES else None


class Messages:
    """Reader of the messages in one direction of a call, for copies."""

    def __init__(self, on_message: Callable[[bytes], None], max_bytes: int) -> None:
        self._on_message = on_message
        self._stream = MessageStream(0, 0)
        self._stream.encoding = "identity"
        self._stream.partial_message = None
        self._reader: MessageReader[MessageStream] = MessageReader(max_bytes, self)
        self.failed = False

    def begin(self, head: Block | None) -> None:
        """Begin a call: note how the messages are compressed."""
        encoding = None if head is None else head.get(b"grpc-encoding")
        self._stream.encoding = "identity" if encoding is None else encoding.decode("latin-1")
        self._stream.partial_message = None
        self.failed = False

    def feed(self, content: bytes) -> None:
        """Read content."""
        if not self.failed:
            self._reader.read(self._stream, content, 0, len(content))

    def on_message(self, stream: MessageStream, message: bytes) -> None:  # noqa: ARG002
        """Pass on a message."""
        self._on_message(message)

    def on_bad_message(self, stream: MessageStream, error: RpcError) -> None:  # noqa: ARG002
        """Read no further: the content is passed on all the same."""
        self.failed = True

    def on_tiny_piece(self) -> None:
        """Do nothing."""

    def on_many_messages(self) -> None:
        """Do nothing."""

    def allocator_of(self, stream: MessageStream) -> AllocateBuffer | None:  # noqa: ARG002
        """Return None: messages are bytes."""
        return None

    def defer_inflation(self, stream: MessageStream, inflation: Inflation) -> bool:  # noqa: ARG002
        """Return False: messages are inflated at once."""
        return False


class _Response(StreamOwner):
    """Response of one server to a unary call, passed on to the client if there is one.

    refused: the server did not process the call, and nothing was passed on. max_bytes: of a
    response that is kept. on_done: called once, unless the call is cancelled. may_refuse: whether
    the status UNAVAILABLE counts as refused.
    """

    def __init__(
        self,
        client: ProxyStream | None,
        max_bytes: int,
        held: Holder,
        on_done: Callable[[_Response], None],
        *,
        may_refuse: bool = False,
    ) -> None:
        # Called when the response's message begins to arrive, before it is passed on.
        self.before_message: Callable[[], None] | None = None
        self._client = client
        self._may_refuse = may_refuse
        self._max_bytes = max_bytes
        self._held_bytes = held
        self.why_not_kept = ""
        self._on_done = on_done
        self._held: Block | None = None
        self.server: ProxyStream | None = None
        self.refused = False
        self.is_done = False
        self.head: Block | None = None
        self.trailers: Block | None = None
        self._content: list[bytes] = []
        self.content_bytes = 0
        self._passed_on = False

    @property
    def status(self) -> bytes:
        """The call's status, "" if the server reset it."""
        return (self.trailers.get(b"grpc-status") if self.trailers is not None else None) or b""

    @property
    def content(self) -> list[bytes] | None:
        """The response's content in pieces; `None` if it was not kept."""
        return None if self.why_not_kept else self._content

    def on_head(self, block: Block) -> None:
        self.head = block
        if self._may_refuse:
            self._held = block
        elif self._client is not None:
            self._passed_on = True
            self._client.send_head(block.encoded)

    def on_content(self, content: bytes) -> None:
        if self.before_message is not None:
            self.before_message()
            self.before_message = None
        self._pass_on_head()
        self.content_bytes += len(content)
        if not self.why_not_kept:
            if self.content_bytes > self._max_bytes:
                self.why_not_kept = "the response is too large"
            elif not self._held_bytes.add(len(content)):
                self.why_not_kept = NO_SPACE
            else:
                self._content.append(content)
        if self.why_not_kept:
            self._content.clear()
            self._held_bytes.release()
        if self._client is not None:
            self._client.send_content(content)
            if self._client.is_full and self.server is not None:
                self.server.set_paused(True)

    def on_end(self, trailers: Block | None) -> None:
        self.trailers = trailers
        if self._may_refuse and not self._passed_on and self.status == _UNAVAILABLE:
            self.refused = True
        else:
            self._pass_on_head()
            if self._client is not None:
                self._client.end(trailers.encoded if trailers is not None else b"")
        self._finish()

    def on_reset(self, code: int, *, processed: bool) -> None:
        if not self._passed_on and (not processed or self._may_refuse):
            self.refused = True
        elif self._client is not None:
            if code == Code.CONNECT_ERROR:
                fail_call(self._client, _LOST)
            else:
                self._client.reset(code)
        self._finish()

    def on_writable(self) -> None:
        """Do nothing: the request is queued as a whole."""

    def refuse(self) -> None:
        """End the response, because the server cannot be reached."""
        self.refused = True
        self._finish()

    def resume(self) -> None:
        """Read on, because the client has read."""
        if self.server is not None:
            self.server.set_paused(False)

    def cancel(self) -> None:
        """Cancel the call at the server."""
        self.is_done = True
        self._client = None
        if self.server is not None:
            self.server.reset()

    def _pass_on_head(self) -> None:
        self._passed_on = True
        if self._held is not None and self._client is not None:
            self._client.send_head(self._held.encoded)
        self._held = None

    def _finish(self) -> None:
        if not self.is_done:
            self.is_done = True
            self._on_done(self)


class UnaryCall(StreamOwner):
    """A unary call: its request is read as a whole, then one of the servers responds."""

    def __init__(
        self, client: GrpcClient, stream: ProxyStream, head: Block, path: str, kind: CallKind
    ) -> None:
        self._client = client
        self._stream = stream
        self._head = head
        self._path = path
        self._kind = kind
        self._content: list[bytes] = []
        self._content_bytes = 0
        self._held = Holder(client.site.held_bytes)
        self._response: _Response | None = None
        # The attributes of an inference follow.
        self._side = Side.OLD
        self._attempts = 0
        self._begin = self._latency_s = 0.0
        self._request: bytes | None = None
        self._model = ""
        self._facts = NO_FACTS
        self._is_copied = False
        self._inputs: dict[str, bytes] | None = {}
        self._outputs: dict[str, bytes] | None = {}

    def on_head(self, block: Block) -> None:
        """Do nothing: requests have one head."""

    def on_content(self, content: bytes) -> None:
        """Keep the request, or pass on one that is too large."""
        self._content.append(content)
        self._content_bytes += len(content)
        if self._content_bytes > self._client.site.max_copied_bytes:
            self._pass_on_unread("the request is too large")
        elif not self._held.add(len(content)):
            self._pass_on_unread(NO_SPACE)

    def _pass_on_unread(self, reason: str) -> None:
        """Pass on the request as it arrives."""
        site = self._client.site
        side = site.traffic.side_of_other_calls()
        if self._kind is CallKind.INFER:
            begin = b"".join(self._content)[_PREFIX_BYTES : _PREFIX_BYTES + _BEGIN_BYTES]
            is_compressed = self._content[0][:1] != b"\0"
            model, facts = ("", NO_FACTS) if is_compressed else grpc_leading_facts(begin)
            if facts.step is not None:
                side = site.side_of_request(facts)
            if site.is_copied(facts):
                site.recorder.skip(model, reason, facts.step)
        call = StreamCall(
            self._client, self._stream, self._head, self._path, copied=False, side=side
        )
        # Its queue has what was held.
        call.held = self._held
        self._stream.owner = call
        for piece in self._content:
            call.on_content(piece)
        self._content.clear()

    def on_end(self, trailers: Block | None) -> None:  # noqa: ARG002 - they have no meaning in gRPC
        """Send the request."""
        if self._kind is CallKind.INFER:
            self._infer()
        else:
            self._client.spawn(self._change())

    def on_reset(self, code: int, *, processed: bool) -> None:  # noqa: ARG002
        """Cancel the call."""
        if self._response is not None and not self._response.is_done:
            self._response.cancel()
            self._response = None

    def on_writable(self) -> None:
        """Read on."""
        if self._response is not None:
            self._response.resume()

    def _infer(self) -> None:
        site = self._client.site
        self._request = self._client.message_of(self._head, self._content)
        if self._request is not None:
            self._model, self._facts = grpc_facts(self._request)
        self._is_copied = site.is_copied(self._facts)
        if self._is_copied and self._facts.input_ranges:
            self._inputs = site.regions.read(self._facts.input_ranges)
        self._begin = perf_counter()
        self._attempt(site.side_of_request(self._facts))

    def _attempt(self, side: Side) -> None:
        self._side = side
        self._attempts += side is Side.OLD
        site = self._client.site
        self._response = response = _Response(
            self._stream,
            site.max_copied_bytes if self._is_copied else 0,
            Holder(site.held_bytes),
            self._on_response,
            may_refuse=side is Side.NEW and site.may_fail_over(self._facts.step),
        )
        if self._is_copied and self._facts.output_ranges:
            # The client may change its regions as soon as it has the response.
            response.before_message = self._read_outputs
        self._client.send_request(side, self._head, self._content, response)

    def _read_outputs(self) -> None:
        self._outputs = self._client.site.regions.read(self._facts.output_ranges)

    def _on_response(self, response: _Response) -> None:
        recorder = self._client.site.recorder
        if not response.refused:
            recorder.responses[self._side] += 1
            if self._is_copied and response.status and self._request is not None:
                self._latency_s = perf_counter() - self._begin
                recorder.record_later(self._record)
            else:
                self._response = None
        elif self._side is Side.NEW:
            self._client.spawn(self._fail_over())
        elif self._attempts < _ATTEMPTS:
            # The idle connection may have been closed at that moment.
            self._attempt(Side.OLD)
        else:
            self._fail()

    async def _fail_over(self) -> None:
        can_respond = await self._client.site.fail_over(self._facts.step)
        if not self._stream.is_open:
            return
        if can_respond:
            self._attempt(Side.OLD)
        else:
            self._fail()

    def _fail(self) -> None:
        self._client.site.recorder.failures += 1
        self._response = None
        fail_call(self._stream, _UNREACHABLE)

    def _record(self) -> None:
        model, facts, recorder = self._model, self._facts, self._client.site.recorder
        request, response = self._request, self._response
        assert request is not None
        assert response is not None
        # The response refers to this call: what both hold is released with the last reference.
        self._response = None
        if not recorder.may_copy(model, facts):
            return
        content = response.content
        if content is None:
            recorder.skip(model, response.why_not_kept, facts.step)
            return
        if self._inputs is None or self._outputs is None:
            recorder.skip(model, NO_REGION, facts.step)
            return
        recorder.submit(
            CopiedCall(
                model=model,
                side=self._side,
                path=self._path,
                headers=self._head.metadata,
                request=(piece_of(request),),
                reply=self._client.reply_of(response, content),
                latency_s=self._latency_s,
                step=facts.step,
                inputs=self._inputs,
                outputs=self._outputs,
            ),
            self._content_bytes + response.content_bytes,
        )

    async def _change(self) -> None:
        """Have both servers make a change. The one that responds to other calls makes it last."""
        site = self._client.site
        await site.recorder.drain()
        side = site.traffic.side_of_other_calls()
        other_status = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(site.max_change_s):
                other_status = (await self._change_one(side.other, None)).status
        response = await self._change_one(side, self._stream)
        if response.refused:
            site.recorder.failures += 1
            fail_call(self._stream, _UNREACHABLE)
            return
        site.recorder.responses[side] += 1
        request = self._client.message_of(self._head, self._content)
        if response.status == _OK and request is not None:
            sides = {side, side.other} if other_status == _OK else {side}
            site.regions.on_grpc_change(self._path, request, frozenset(sides))
        site.recorder.note_change(self._path, ok=response.status == other_status)

    async def _change_one(self, side: Side, client: ProxyStream | None) -> _Response:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        response = _Response(
            client, 0, Holder(self._client.site.held_bytes), partial(_set_done, done)
        )
        self._client.send_request(side, self._head, self._content, response)
        if client is not None:
            self._response = response
        try:
            await done
        except asyncio.CancelledError:
            response.cancel()
            raise
        return response


def _set_done(done: asyncio.Future[None], response: _Response) -> None:  # noqa: ARG001
    done.set_result(None)


class StreamCall(StreamOwner):
    """A call whose messages are passed on as they arrive, in both directions.

    With copies, the server is chosen when the first message has arrived. It also decides whether
    there is a copy of the stream.
    """

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        client: GrpcClient,
        stream: ProxyStream,
        head: Block,
        path: str,
        *,
        copied: bool,
        side: Side | None = None,
    ) -> None:
        self._client = client
        self._stream = stream
        self._head = head
        self._path = path
        self._server: ProxyStream | None = None
        # `None` until the server is connected.
        self._side: Side | None = None
        self._waiting: list[bytes] = []
        self._ended = self._is_chosen = False
        self._number = 0
        self._model = ""
        max_bytes = client.site.max_copied_bytes
        # Sequences are read without copies, too.
        self._requests = Messages(self._on_request, max_bytes) if copied else None
        self._responses = Messages(self._on_response, max_bytes) if copied else None
        # The copy of a sampled stream may end before the stream does.
        self._is_sampled = self._is_copied = copied
        self.held: Holder | None = None
        # Events and steps wait until the server is connected.
        self._events: list[StreamEvent] = []
        self._steps: list[SequenceStep] = []
        self._replies = _StreamReplies(self)
        if self._requests is None:
            self._choose(client.site.traffic.side_of_other_calls() if side is None else side)
        else:
            self._number = client.site.next_stream()
            self._requests.begin(head)
            self._record("begin", path=path, headers=head.metadata)

    def on_head(self, block: Block) -> None:
        """Do nothing: requests have one head."""

    def on_content(self, content: bytes) -> None:
        """Pass on a part of the request."""
        if self._requests is not None:
            self._requests.feed(content)
            if self._requests.failed and not self._is_chosen:
                self._choose(Side.OLD)
        if self._server is None:
            self._waiting.append(content)
            return
        self._server.send_content(content)
        if self._server.is_full:
            self._stream.set_paused(True)

    def on_end(self, trailers: Block | None) -> None:  # noqa: ARG002 - they have no meaning in gRPC
        """End the request."""
        self._ended = True
        self._record("half-close")
        if not self._is_chosen:
            self._choose(self._client.site.traffic.side_of_stream(None, self._client.draw))
        if self._server is not None:
            self._server.end()

    def on_reset(self, code: int, *, processed: bool) -> None:  # noqa: ARG002
        """Cancel the call."""
        self._release()
        self._record("cancel")
        if self._server is not None:
            self._server.reset(Code.CANCEL)

    def on_writable(self) -> None:
        """Continue to read the response."""
        if self._server is not None:
            self._server.set_paused(False)

    def on_server_writable(self) -> None:
        """Continue to read the request."""
        self._stream.set_paused(False)

    def on_response_head(self, block: Block) -> None:
        """Pass on the response's headers."""
        if self._responses is not None and self._is_copied:
            self._responses.begin(block)
        self._stream.send_head(block.encoded)

    def on_response_content(self, content: bytes) -> None:
        """Pass on a part of the response."""
        self._stream.send_content(content)
        if self._stream.is_full and self._server is not None:
            self._server.set_paused(True)
        if self._responses is not None and self._is_copied:
            self._responses.feed(content)

    def on_response_end(self, trailers: Block | None) -> None:
        """Pass on the response's end."""
        self._release()
        self._stream.end(trailers.encoded if trailers is not None else b"")
        status = (trailers.get(b"grpc-status") if trailers is not None else None) or b""
        self._record("end", message=status)

    def on_response_reset(self, code: int) -> None:
        """Pass on that the server has reset the call."""
        self._release()
        self._record("cancel")
        if code == Code.CONNECT_ERROR:
            fail_call(self._stream, _LOST)
        else:
            self._stream.reset(code)

    def _release(self) -> None:
        if self.held is not None:
            self.held.release()

    def _choose(self, side: Side, step: SequenceStep | None = None) -> None:
        self._is_chosen = True
        if self._is_copied:
            self._is_sampled = self._client.site.traffic.is_copied(step)
            if not self._is_sampled:
                self._end_copy()
        self._client.spawn(self._connect(side))

    async def _connect(self, side: Side) -> None:
        site, recorder = self._client.site, self._client.site.recorder
        connection = None
        why = ""
        may_fail_over = all(map(site.may_fail_over, self._steps))
        for candidate in dict.fromkeys((side, Side.OLD if may_fail_over else side)):
            server = self._client.servers[candidate]
            try:
                connection = server.ready or await server.connect()
            except OSError as error:
                why = reason(error)
                recorder.failovers += candidate is Side.NEW and may_fail_over
                continue
            self._side = candidate
            break
        if not self._stream.is_open:
            return
        if connection is None or self._side is None:
            recorder.failures += 1
            self._release()
            fail_call(self._stream, f"{_UNREACHABLE}: {why}")
            return
        recorder.responses[self._side] += 1
        for step in self._steps:
            site.traffic.note_step(step, self._side)
        self._steps.clear()
        events, self._events = self._events, []
        for event in events:
            if self._is_copied:
                self._submit(event, self._side)
        self._server = connection.open(self._head.encoded, self._replies)
        for piece in self._waiting:
            self._server.send_content(piece)
        self._waiting.clear()
        if self._ended:
            self._server.end()

    def _on_request(self, message: bytes) -> None:
        site = self._client.site
        model, facts = grpc_facts(message)
        self._model = self._model or model
        if not self._is_chosen:
            side = site.traffic.side_of_stream(facts.step, self._client.draw)
            at_old = site.regions.are_at(Side.OLD, facts)
            has_regions = site.regions.are_at(side, facts) or not at_old
            self._choose(side if has_regions else Side.OLD, facts.step)
        if self._is_copied and (facts.input_ranges or facts.output_ranges):
            # The copy's outputs would be written into the client's memory.
            site.recorder.skip(model, "shared memory in a stream")
            self._end_copy()
        site.recorder.not_sampled += not self._is_sampled
        self._record("request", message=message)
        if not self._is_copied:
            site.recorder.break_sequence(facts.step)
        if facts.step is not None:
            if self._side is None:
                self._steps.append(facts.step)
            else:
                site.traffic.note_step(facts.step, self._side)

    def _on_response(self, message: bytes) -> None:
        self._record("response", message=message)

    def _record(
        self,
        kind: str,
        *,
        message: bytes = b"",
        path: str = "",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        if not self._is_copied:
            return
        event = StreamEvent(
            self._number,
            self._side or Side.OLD,
            kind,
            message=message,
            path=path,
            headers=headers,
            model=self._model,
        )
        if self._side is None:
            self._events.append(event)
        else:
            self._submit(event, self._side)

    def _submit(self, event: StreamEvent, side: Side) -> None:
        if not self._client.site.recorder.submit_event(
            event._replace(side=side, model=self._model)
        ):
            # A stream with a gap cannot be compared.
            self._end_copy()

    def _end_copy(self) -> None:
        self._is_copied = False
        self._events.clear()
        if self._side is not None:
            self._client.site.recorder.abandon_stream(self._number)


class _StreamReplies(StreamOwner):
    """Owner of a stream's server side."""

    def __init__(self, call: StreamCall) -> None:
        self._call = call

    def on_head(self, block: Block) -> None:
        self._call.on_response_head(block)

    def on_content(self, content: bytes) -> None:
        self._call.on_response_content(content)

    def on_end(self, trailers: Block | None) -> None:
        self._call.on_response_end(trailers)

    def on_reset(self, code: int, *, processed: bool) -> None:  # noqa: ARG002
        self._call.on_response_reset(code)

    def on_writable(self) -> None:
        self._call.on_server_writable()


def fail_call(stream: ProxyStream, message: str) -> None:
    """End a call as unavailable."""
    head = b"" if stream.head_sent else _HEAD
    stream.end(head + encode_status(Status.UNAVAILABLE, message))
