"""gRPC calls whose messages are passed on as they arrive."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.rpc.http2.frames import Code
from nereid.rpc.net.tls_files import reason
from nereid_adopt.calls.requests import grpc_facts
from nereid_adopt.calls.traffic import Side
from nereid_adopt.proxy.grpc_messages import Messages
from nereid_adopt.proxy.proxy_stream import LOST, UNREACHABLE, StreamOwner
from nereid_adopt.proxy.recorder import REUSED_ID, StreamEvent

if TYPE_CHECKING:
    from nereid_adopt.calls.traffic import SequenceStep
    from nereid_adopt.proxy.grpc_client import GrpcClient
    from nereid_adopt.proxy.held_bytes import Holder
    from nereid_adopt.proxy.proxy_stream import Block, ProxyStream


class StreamCall(StreamOwner):
    """A call whose messages are passed on as they arrive, in both directions.

    With copies, the server is chosen when the first message has arrived. It also decides whether
    there is a copy of the stream.
    """

    def __init__(
        self,
        client: GrpcClient,
        stream: ProxyStream,
        head: Block,
        *,
        copied: bool,
        side: Side | None = None,
    ) -> None:
        self._client = client
        self._stream = stream
        self._head = head
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
            self._record("begin", path=head.path, headers=head.metadata)

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
            self._stream.fail(LOST)
        else:
            self._stream.reset(code)

    def _release(self) -> None:
        if self.held is not None:
            self.held.release()

    def _choose(self, side: Side, step: SequenceStep | None = None) -> None:
        self._is_chosen = True
        if self._is_copied:
            site = self._client.site
            self._is_sampled = site.traffic.is_copied(step)
            is_kept = step is not None and site.traffic.is_kept(step)
            if is_kept and self._is_sampled:
                site.recorder.skip(self._model, REUSED_ID)
            if is_kept or not self._is_sampled:
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
            self._stream.fail(f"{UNREACHABLE}: {why}")
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
