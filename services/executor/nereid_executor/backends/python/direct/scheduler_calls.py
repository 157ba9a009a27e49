"""A worker's own link to the scheduler, for its model's calls, in a mesh with one scheduler."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument, NereidError, Unavailable
from nereid.core.wire.messages import InferResponse, error_status_of
from nereid.mesh_routing.control_calls import UNREACHABLE
from nereid.rpc import ChannelOptions, SocketChannel
from nereid_executor.backends.python.direct.loop_driver import (
    IDLE_S,
    ClosedError,
    LoopDriver,
)
from nereid_executor.backends.python.messages.call_messages import infer_request, response_parts
from nereid_executor.backends.python.worker_site.nereid_worker.connection import pending_calls
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.channel import (
    is_forked,
)
from nereid_executor.core.mesh_client import Mesh

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from nereid.backends import RequestControl
    from nereid.core.wire.messages import InferRequest
    from nereid_executor.backends.python.worker_site.nereid_worker.connection import (
        request_segments,
    )
    from nereid_executor.core.mesh_client import MeshRequest

_log = logging.getLogger(__name__)

_NO_LINK: Final = "no link to the scheduler: calls of the model go through the executor"


class SchedulerPath:
    """A `CallPath` over a link to the scheduler. Waiting threads run the link's event loop."""

    def __init__(  # noqa: PLR0913 (some by keyword)
        self,
        address: str,
        message: dict[str, Any],
        instance: int,
        segments: request_segments.RequestSegmentPool,
        *,
        on_lost: Callable[[], None],
        idle_s: float = IDLE_S,
    ) -> None:
        """Prepare a link to the scheduler at this address.

        about: the LINK message. instance: the scheduler's number for it. on_lost is called when the
        link fails. Raises OSError or RuntimeError if the system has no more descriptors or threads.
        """
        self.calls = pending_calls.PendingCalls(self, segments)
        self._address = address
        self._about = message
        self._instance = instance
        self._on_lost = on_lost
        self._opening = False
        self._driver = LoopDriver(self._is_busy, self._fail, idle_s)
        self._channel: SocketChannel | None = None
        self._mesh: Mesh | None = None
        self._requests: dict[int, MeshRequest] = {}
        # Receives one item when open() is done: whether the link is up.
        self._outcome: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._retired = False

    def open(self, timeout_s: float) -> bool:
        """Open the link; return False if it is not up within timeout_s, or closed before."""
        self._opening = True
        try:
            return self._driver.run(partial(self._open, timeout_s), self._outcome)
        except ClosedError:
            return False
        finally:
            self._opening = False

    def _open(self, timeout_s: float) -> None:
        timer = self._driver.loop.call_later(timeout_s, self._report, False)
        metadata = [(key, value) for key, value in self._about["metadata"]]
        options = ChannelOptions(credentials=partial(_credential, metadata))
        self._channel = SocketChannel(self._address, options)
        self._mesh = Mesh(
            self._channel,
            self._about["domain"],
            on_link_up=partial(self._on_up, timer),
            on_link_lost=self._fail,
        )
        self._mesh.open()

    def _on_up(self, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._report(True)

    def _report(self, up: bool) -> None:
        self._outcome.put(up)
        self._driver.stop()

    def _is_busy(self) -> bool:
        return self._opening or self.calls.any_pending()

    def close(self) -> None:
        """Close the link; pending calls fail. Any thread may call this, more than once."""
        # In a forked process, the link belongs to the parent.
        if not is_forked():
            self._driver.close(self._end)

    def retire(self) -> None:
        """Close the link once no call is pending. Thread-safe."""
        if not is_forked():
            with contextlib.suppress(ClosedError):
                self._driver.submit(self._begin_retirement)

    def _begin_retirement(self) -> None:
        self._retired = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._retired and not self.calls.any_pending():
            self.close()

    async def _end(self) -> None:
        self._report(False)
        try:
            self._close_mesh()
        finally:
            # If the loop failed before it submitted a call, the mesh client does not know the call.
            for number, model in self.calls.unanswered():
                self._refuse(number, model, Unavailable(UNREACHABLE))
        if self._channel is not None:
            await self._channel.close()

    def _close_mesh(self) -> None:
        # Otherwise the scheduler would wait for the worker to send the requests again.
        for request in self._requests.values():
            request.on_receiver_event("cancel")
        if self._mesh is not None:
            self._mesh.close()

    def _fail(self) -> None:
        self._on_lost()
        self.close()

    def send(self, number: int, message: dict[str, Any], tensors: Sequence[Any]) -> None:
        """Send a call. If the link has ended, the response is the error UNAVAILABLE."""
        what = message["what"]
        if what != "infer":
            self._control(message, what)
            self.calls.on_response(number, pending_calls.Response(wire.EMPTY, None, ()))
            return
        work = self._infer(number, message, tensors)
        try:
            self._driver.submit(work)
        except ClosedError:
            self._refuse(number, message["model"], Unavailable(UNREACHABLE))

    def send_from_finalizer(self, _number: int, message: dict[str, Any]) -> None:
        """Send a call that has no tensors and gets no response."""
        self._control(message, message["what"])

    def send_and_wait(
        self,
        number: int,
        message: dict[str, Any],
        tensors: Sequence[Any],
        received: queue.SimpleQueue[pending_calls.Response],
    ) -> pending_calls.Response:
        """Send a call and wait for its response, running the loop if no other thread does."""
        work = self._infer(number, message, tensors)
        try:
            return self._driver.run(work, received)
        except ClosedError:
            self._refuse(number, message["model"], Unavailable(UNREACHABLE))
            return received.get()

    def _infer(
        self, number: int, message: dict[str, Any], tensors: Sequence[Any]
    ) -> Callable[[], None]:
        request: InferRequest | InvalidArgument
        try:
            request = infer_request(message, tensors, self._instance, None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            text = f"malformed request to the mesh: {error}"
            request = InvalidArgument(text, accepted=True)
        return partial(self._submit, number, message["model"], request, message.get("released", ()))

    def _control(self, message: dict[str, Any], what: Any) -> None:
        if is_forked():
            return
        if what == "release":
            work = partial(self._release, message["segment_names"])
        else:
            work = partial(self._send_control, message["call"], what)
        with contextlib.suppress(ClosedError):
            self._driver.submit(work)

    def _submit(
        self,
        number: int,
        model: str,
        request: InferRequest | InvalidArgument,
        released: Sequence[str],
    ) -> None:
        if released:
            self._release(released)
        if isinstance(request, InvalidArgument):
            self._refuse(number, model, request)
            return
        assert self._mesh is not None, "calls come after open()"
        self._requests[number] = mesh_request = self._mesh.new_request(
            request, partial(self._on_infer_response, number, model)
        )
        self._mesh.submit(mesh_request)

    def _on_infer_response(self, number: int, model: str, response: InferResponse) -> None:
        parts = response_parts(model, response)
        self.calls.on_response(number, pending_calls.Response(*parts))
        if not response.more:
            self._requests.pop(number, None)
            self._driver.stop()
            self._close_if_done()

    def _send_control(self, number: int, what: RequestControl) -> None:
        request = self._requests.get(number)
        if request is not None:
            request.on_receiver_event(what)
            if what == "cancel":
                del self._requests[number]
                self._driver.stop()
                self._close_if_done()

    def _release(self, segment_names: Sequence[str]) -> None:
        if self._mesh is not None:
            self._mesh.release_segments(tuple(segment_names))

    def _refuse(self, number: int, model: str, error: NereidError) -> None:
        response = InferResponse(0, error=error_status_of(error))
        self._on_infer_response(number, model, response)


def _credential(metadata: Sequence[tuple[str, str]], _path: str) -> Sequence[tuple[str, str]]:
    return metadata


class SchedulerCalls:
    """Calls over a link to the scheduler. The first call opens the link."""

    def __init__(
        self,
        open_path: Callable[[dict[str, Any], Callable[[], None]], SchedulerPath],
        request_link: Callable[[], None],
        timeout_s: float,
        *,
        must_not_wait: Callable[[], bool],
    ) -> None:
        """Prepare a link; the first call opens it.

        request_link asks the executor for a link; its response goes to on_link(). timeout_s:
        seconds to wait for this response, and then for the link. must_not_wait returns whether the
        calling thread is the one that reads responses.
        """
        self._open_path = open_path
        self._request_link = request_link
        self._timeout_s = timeout_s
        self._must_not_wait = must_not_wait
        self._granted: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._requested = False
        self._opening = threading.Lock()
        # True once it is decided whether calls use a link. The decision is made once, so that the
        # calls of a sequence all take the same path.
        self._decided = False
        self._path: SchedulerPath | None = None
        # Other threads may set `_ended` while the link is being opened.
        self._is_up = self._ended = False

    def calls(self) -> pending_calls.PendingCalls | None:
        """Return the link's PendingCalls, or None without a link. The first call opens it."""
        if not self._decided and not self._must_not_wait():
            with self._opening:
                if not self._decided:
                    self._open()
                    self._decided = True
        path = self._path
        return path.calls if path is not None and self._is_up and not self._ended else None

    def on_link(self, message: dict[str, Any] | None) -> None:
        """Handle the executor's response to a request for a link, in the reading thread."""
        # Without a request, the response belongs to a late request of the previous stream.
        if self._requested:
            self._granted.put(message)

    def close(self, *, cut: bool) -> None:
        """Stop using the link. Thread-safe; may be called again.

        cut: fail pending calls at once; otherwise the link stays open until they have their
        responses.
        """
        self._end_use()
        self._granted.put(None)
        path = self._path
        if path is not None:
            path.close() if cut else path.retire()

    def _open(self) -> None:
        self._requested = True
        self._request_link()
        try:
            message = self._granted.get(timeout=self._timeout_s)
        except queue.Empty:
            return
        if message is None:
            return
        try:
            path = self._open_path(message, self._end_use)
        except (OSError, RuntimeError) as error:
            _log.warning("%s: %s", _NO_LINK, error)
            return
        # From this assignment on, close() finds the link and ends it.
        self._path = path
        self._is_up = not self._ended and path.open(self._timeout_s)
        if not (self._is_up or self._ended):
            _log.warning(_NO_LINK)
        if self._ended or not self._is_up:
            path.close()

    def _end_use(self) -> None:
        self._ended = self._decided = True
