"""Unary gRPC calls: the request is read as a whole, then passed on."""

# layout: compiled

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from nereid.rpc.grpc.metadata import decode_message
from nereid.rpc.grpc.status import Status
from nereid.rpc.http2.frames import Code
from nereid_adopt.calls.kinds import MODEL_INFER, CallKind
from nereid_adopt.calls.requests import NO_FACTS, grpc_facts, grpc_leading_facts
from nereid_adopt.calls.traffic import Side
from nereid_adopt.proxy.grpc_messages import PREFIX_BYTES
from nereid_adopt.proxy.held_bytes import NO_SPACE, Holder
from nereid_adopt.proxy.proxy_stream import LOST, UNREACHABLE, StreamOwner
from nereid_adopt.proxy.recorder import NO_REGION, CopiedCall, GrpcReply, piece_of
from nereid_adopt.proxy.stream_calls import StreamCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_adopt.proxy.grpc_client import GrpcClient
    from nereid_adopt.proxy.proxy_stream import Block, ProxyStream

_UNAVAILABLE: Final = b"%d" % Status.UNAVAILABLE
_OK: Final = b"0"
_ATTEMPTS: Final = 2
# So much of a request that is not kept has its model and parameters.
_BEGIN_BYTES: Final = 16384


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
                self._client.fail(LOST)
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
        self, client: GrpcClient, stream: ProxyStream, head: Block, kind: CallKind
    ) -> None:
        self._client = client
        self._stream = stream
        self._head = head
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
            begin = b"".join(self._content)[PREFIX_BYTES : PREFIX_BYTES + _BEGIN_BYTES]
            is_compressed = self._content[0][:1] != b"\0"
            model, facts = ("", NO_FACTS) if is_compressed else grpc_leading_facts(begin)
            planned, is_copied = site.plan(facts)
            if facts.step is not None:
                side = planned
            if is_copied:
                site.recorder.skip(model, reason, facts.step)
        call = StreamCall(self._client, self._stream, self._head, copied=False, side=side)
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
        side, self._is_copied = site.plan(self._facts)
        if self._is_copied and self._facts.input_ranges:
            self._inputs = site.regions.read(self._facts.input_ranges)
        self._begin = perf_counter()
        self._attempt(side)

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
        self._send(side, response)

    def _send(self, side: Side, response: _Response) -> None:
        """Send the whole request to one side."""
        connection = self._client.servers[side].ready
        if connection is None:
            self._client.spawn(self._connect_and_send(side, response))
        else:
            response.server = connection.request(self._head.encoded, self._content, response)

    async def _connect_and_send(self, side: Side, response: _Response) -> None:
        try:
            connection = await self._client.servers[side].connect()
        except OSError:
            if not response.is_done:
                response.refuse()
            return
        if not response.is_done:
            response.server = connection.request(self._head.encoded, self._content, response)

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
        self._stream.fail(UNREACHABLE)

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
                path=MODEL_INFER,
                headers=self._head.metadata,
                request=(piece_of(request),),
                reply=self._reply(response, content),
                latency_s=self._latency_s,
                step=facts.step,
                inputs=self._inputs,
                outputs=self._outputs,
            ),
            self._content_bytes + response.content_bytes,
        )

    def _reply(self, response: _Response, content: list[bytes]) -> GrpcReply:
        if response.status == _OK:
            message = self._client.message_of(response.head, content)
            return GrpcReply(None if message is None else (piece_of(message),))
        assert response.trailers is not None
        text = decode_message(response.trailers.get(b"grpc-message") or b"")
        return GrpcReply(None, response.status.decode("latin-1"), text)

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
            self._stream.fail(UNREACHABLE)
            return
        site.recorder.responses[side] += 1
        request = self._client.message_of(self._head, self._content)
        if response.status == _OK and request is not None:
            sides = {side, side.other} if other_status == _OK else {side}
            site.regions.on_grpc_change(self._head.path, request, frozenset(sides))
        site.recorder.note_change(self._head.path, ok=response.status == other_status)

    async def _change_one(self, side: Side, client: ProxyStream | None) -> _Response:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        response = _Response(
            client, 0, Holder(self._client.site.held_bytes), partial(_set_done, done)
        )
        self._send(side, response)
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
