"""A scheduler's end of links behind a real socket, and the two ways of a worker's calls to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from nereid.core.errors import Internal
from nereid.core.methods import INFER_PATH
from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import CachedModels, ErrorStatus, InferRequest, InferResponse
from nereid.rpc import (
    Call,
    ChannelOptions,
    Handlers,
    Link,
    Server,
    SocketChannel,
    Status,
    accept_link,
)
from nereid_executor.backends.python.direct.scheduler_calls import (
    SchedulerCalls,
    SchedulerPath,
)
from nereid_executor.backends.python.supervisor.model_calls import ModelCalls
from nereid_executor.backends.python.worker_site.nereid_worker.connection import (
    executor_connection,
    pending_calls,
    request_segments,
)
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.channel import (
    Channel,
)
from nereid_executor.core.mesh_client import Mesh

# Only a test that fails waits so long.
LIMIT_S = 20.0
DOMAIN = "here"
INSTANCE = 42
CREDENTIAL = ("credential", "good for one")

Responder = Callable[[InferRequest], Sequence[InferResponse]]


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, made: Callable[[], Any]) -> Any:
        """Call a function in the loop, and return its result once it is there."""

        async def call() -> Any:
            result = made()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(LIMIT_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LIMIT_S)
        self.loop.close()


class LinkScheduler:
    """Accepts links with the credential, and responds to requests as the test says."""

    def __init__(self, address: str, respond: Responder, *, greets: bool = True) -> None:
        self.address = address
        self.respond = respond
        self.greets = greets
        # Messages other than requests, and how often somebody wanted a link.
        self.notices: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.requests: queue.SimpleQueue[InferRequest] = queue.SimpleQueue()
        self.seen: list[InferRequest] = []
        self.calls: list[Call] = []
        self.accepted: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self.links: list[Link[Any]] = []
        self._thread = LoopThread()
        self._server: Server = self._thread.run(
            lambda: Server(Handlers(stream={INFER_PATH: self._accept}))
        )
        self._thread.run(lambda: self._server.listen(address))

    def _accept(self, call: Call) -> None:
        self.calls.append(call)
        self.accepted.put(call)
        if call.get(CREDENTIAL[0]) != CREDENTIAL[1]:
            call.fail(Status.UNAUTHENTICATED, "no credential")
            return
        link: Link[Any] = accept_link(
            call, _Codec(), on_items=lambda items: self._on_items(link, items), on_down=lambda: None
        )
        self.links.append(link)
        if self.greets:
            link.send(CachedModels((), DOMAIN))

    def _on_items(self, link: Link[Any], items: list[Any]) -> None:
        for item in items:
            if isinstance(item, InferRequest):
                self.seen.append(item)
                self.requests.put(item)
                try:
                    responses = self.respond(item)
                except Exception as error:
                    error_status = ErrorStatus(Internal.code, f"the test's scheduler: {error!r}")
                    responses = [InferResponse(item.id, error=error_status)]
                for response in responses:
                    link.send(response)
            else:
                self.notices.put(item)

    def send(self, *responses: InferResponse) -> None:
        """Over the link that was opened last."""

        def send() -> None:
            for response in responses:
                self.links[-1].send(response)

        self._thread.run(send)

    def break_links(self) -> None:
        """The streams of all links end."""

        def fail() -> None:
            for call in self.calls:
                call.fail(Status.UNAVAILABLE, "it breaks")

        self._thread.run(fail)

    def close(self) -> None:
        self._thread.run(self._server.close)
        self._thread.close()


class _Codec:
    """Responses to frames, frames to requests."""

    def __init__(self) -> None:
        out = ResponseCodec()
        self.size_bytes, self.encode = out.size_bytes, out.encode
        self.decode = RequestCodec().decode


class DirectWay:
    """A worker's own link."""

    def __init__(self, scheduler: LinkScheduler, **changed: Any) -> None:
        """changed: metadata, timeout_s or idle_s; granted: what the executor says to a request of a
        link, or None: nothing.
        """
        # Requests for links, to the executor.
        self.requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.segments = request_segments.RequestSegmentPool(1 << 24, idle_s=3600)
        timeout_s = changed.get("timeout_s", LIMIT_S)
        self._scheduler = scheduler
        self._idle_s = changed.get("idle_s", 3600.0)
        metadata = changed.get("metadata", [list(CREDENTIAL)])
        self._link = {"metadata": metadata, "domain": DOMAIN}
        granted = changed.get("granted", (self._link,))

        def request_link() -> None:
            self.requests.put(True)
            for each in granted:
                self.ways.on_link(each)

        self.ways = SchedulerCalls(
            self._open_path,
            request_link,
            timeout_s,
            must_not_wait=changed.get("must_not_wait", bool),
        )

    def new_path(self, on_lost: Callable[[], None] = lambda: None) -> SchedulerPath:
        return self._open_path(self._link, on_lost)

    def _open_path(self, link: dict[str, Any], on_lost: Callable[[], None]) -> SchedulerPath:
        self.path = SchedulerPath(
            self._scheduler.address,
            link,
            INSTANCE,
            self.segments,
            on_lost=on_lost,
            idle_s=self._idle_s,
        )
        return self.path

    @property
    def calls(self) -> pending_calls.PendingCalls:
        calls = self.ways.calls()
        assert calls is not None, "no link"
        return calls

    def close(self) -> None:
        self.ways.close(cut=True)


class ExecutorsWay:
    """A way by the worker's socket and the executor's link."""

    def __init__(self, scheduler: LinkScheduler) -> None:
        self._thread = LoopThread()
        self._channel: SocketChannel
        self._mesh = self._thread.run(lambda: self._link(scheduler))
        self._model_calls = ModelCalls(self._mesh, INSTANCE)
        self._model_calls.worker_pid = os.getpid()
        self._sockets = socket.socketpair()
        self._ours, theirs = map(Channel, self._sockets)
        self._worker = executor_connection.ExecutorConnection(theirs)
        self.segments = request_segments.RequestSegmentPool(1 << 24, idle_s=3600)
        self._worker.enable_calls("m_0", lambda: None, dict, self.segments)
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._serve, lambda: self._read(theirs))
        ]
        for thread in self._threads:
            thread.start()

    def _link(self, scheduler: LinkScheduler) -> Mesh:
        self._channel = SocketChannel(
            scheduler.address, ChannelOptions(credentials=lambda _path: [CREDENTIAL])
        )
        return Mesh(self._channel, DOMAIN)

    @property
    def calls(self) -> pending_calls.PendingCalls:
        return self._worker.calls()

    def _serve(self) -> None:
        """The instance's thread."""
        waiting = select.poll()
        for each in (self._ours.fileno(), self._model_calls.fileno()):
            waiting.register(each, select.POLLIN)
        with contextlib.suppress(wire.LostError):
            while waiting.poll():
                while (frame := self._ours.receive_nowait()) is not None:
                    self._model_calls.start_call(wire.read_call(frame[1]))
                for response in self._model_calls.collect_responses():
                    self._ours.send(wire.CALL_RESPONSE, wire.call_parts(response))
                    self._model_calls.note_sent()

    def _read(self, channel: Channel) -> None:
        with contextlib.suppress(wire.LostError):
            while True:
                self._worker.on_call_response(channel.receive()[1])

    def close(self) -> None:
        for each in self._sockets:
            each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)
        self._model_calls.close()
        self._thread.run(self._mesh.close)
        self._thread.run(self._channel.close)
        self._thread.close()
        for each in self._sockets:
            each.close()
