"""Client by which models reach the mesh that serves them: requests to models, loads and unloads."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from nereid.config.recovery import DEFAULT_TIMES
from nereid.core.errors import DeadlineExceeded, NereidError, Unavailable
from nereid.core.wire.messages import InferResponse, error_status_of
from nereid.mesh_routing.access import OneScheduler, dial_scheduler
from nereid.mesh_routing.control_calls import call_any, call_scheduler
from nereid.mesh_routing.router.only_scheduler import OnlySchedulerRouter
from nereid.mesh_routing.router.router import Callbacks
from nereid.shm.mappings import SegmentLostError, exists, read
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid import rpc
    from nereid.backends import RequestControl
    from nereid.core.wire.messages import ErrorStatus, InferRequest, Notice
    from nereid.mesh_routing.access import MeshAccess
    from nereid.mesh_routing.router.pending_requests import PendingRequest, PendingRequests
    from nereid.mesh_routing.router.router import Router

    OnResponse = Callable[[InferResponse], None]
    OnReply = Callable[[bytes | NereidError], None]

_log = logging.getLogger(__name__)

_DEADLINE_PASSED: Final = "the deadline of the requests that it is for passed"
# Seconds that a call may take. Loads and unloads have no limit.
_SHORT_CALL_S: Final = 30.0
_SHORT_CALLS: Final = frozenset({"ModelReady"})


class BorrowedTensors:
    """A TensorSharing for tensors in segments of other processes on this host."""

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self.shared = False

    def on_scheduler_domain(self, domain: str) -> None:
        """Remember the domain of the scheduler's shared memory."""
        self.shared = bool(domain) and domain == self._domain

    def make_inline(self, request: InferRequest) -> None:
        """Replace references to shared memory with copies of the tensors."""
        try:
            request.payloads = [
                read(payload) if isinstance(payload, SharedMemory) else payload
                for payload in request.payloads
            ]
        except SegmentLostError:
            _log.debug("a model's process ended before its request was sent")

    def open_response(self, response: InferResponse) -> None:
        """Raise SegmentLostError if the response is in a segment that is gone."""
        # One of several responses cannot be computed again, so it is passed on even if it is lost.
        if not response.more and not exists(response.segment_name):
            raise SegmentLostError(f"segment {response.segment_name} does not exist")

    def lost_response(self, response: InferResponse) -> InferResponse:
        """Return the response unchanged. Its receiver finds the loss when it opens the segment."""
        return response


class Mesh:
    """MeshClient for the models of one session, or of all. Thread-safe, except for close()."""

    def __init__(  # noqa: PLR0913 - most by keyword
        self,
        channel: rpc.Channel | None,
        domain: str = "",
        memory: tuple[int, float] | None = None,
        schedulers: MeshAccess | None = None,
        *,
        reconnect_limit_s: float = DEFAULT_TIMES.model_call_s,
        on_link_up: Callable[[], None] | None = None,
        on_link_lost: Callable[[], None] | None = None,
    ) -> None:
        """Create a client, without a link yet.

        channel: `None` reaches the mesh through `schedulers`; requests wait reconnect_limit_s for a
        link. domain: of this process's shared memory. on_link_up: called once.
        """
        self.memory = memory if domain else None
        self._loop = asyncio.get_running_loop()
        self._tensors = BorrowedTensors(domain)
        self._on_link_up = on_link_up
        callbacks = Callbacks(
            on_notice=self._on_notice,
            on_link_lost=lambda _: None if on_link_lost is None else on_link_lost(),
        )
        # References to shared memory are sent only once the scheduler is known to support them.
        self._router: Router
        if schedulers is None:
            assert channel is not None, "no way to any scheduler"
            open_link = dial_scheduler(channel, domain, for_models=True)
            # The link ends with the session and is not opened again, so there is no limit.
            self._router = OnlySchedulerRouter(open_link, self._tensors, None, callbacks)
            self._channels = OneScheduler(open_link, channel).channels
        else:
            self._router = schedulers.make_router(self._tensors, reconnect_limit_s, callbacks)
            self._channels = schedulers.channels
        self._calls: set[asyncio.Task[None]] = set()

    def infer(self, request: InferRequest, on_response: OnResponse) -> MeshRequest:
        """Send a request to be executed. on_response is called for each response."""
        asked = self.new_request(request, on_response)
        self.call_on_loop(lambda: self.submit(asked))
        return asked

    def new_request(self, request: InferRequest, on_response: OnResponse) -> MeshRequest:
        """Return a request that can be submitted later."""
        return MeshRequest(self, self._router.pending, request, on_response)

    def call_scheduler(self, method: str, message: bytes, on_reply: OnReply) -> None:
        """Call a control method of the scheduler."""
        self.call_on_loop(lambda: self._start_call(method, message, on_reply))

    def release_segment(self, segment_name: str) -> None:
        """Release the segment of a response that has been read."""
        self.call_on_loop(lambda: self.release_segments((segment_name,)))

    def close(self) -> None:
        """Close the link. Pending requests and calls fail."""
        self._router.close()
        for task in self._calls:
            task.cancel()

    def call_on_loop(self, work: Callable[[], None]) -> None:
        """Schedule a call of `work` on the event loop, unless the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            _log.debug("an instance's thread outlived the event loop")

    def open(self) -> None:
        """Open the link, unless it is open already or was closed."""
        self._router.open()

    def release_segments(self, segment_names: tuple[str, ...]) -> None:
        """Release the segments of responses that have been read."""
        self._router.pending.release_segments(segment_names)

    def submit(self, asked: MeshRequest) -> None:
        """Send a request to be executed."""
        self.open()
        if self._router.links_up and not self._tensors.shared:
            self._tensors.make_inline(asked.request)
        asked.submit(self._loop)

    def _on_notice(self, _notice: Notice) -> None:
        on_up = self._on_link_up
        if on_up is not None and self._router.links_up:
            self._on_link_up = None
            on_up()

    def _start_call(self, method: str, message: bytes, on_reply: OnReply) -> None:
        task = asyncio.ensure_future(self._call(method, message, on_reply))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, method: str, message: bytes, on_reply: OnReply) -> None:
        reply: bytes | NereidError = Unavailable("the scheduler cannot be reached")
        try:
            timeout_s = _SHORT_CALL_S if method in _SHORT_CALLS else None
            reply = await call_any(
                self._channels(),
                lambda channel: call_scheduler(channel, method, message, timeout_s),
                is_read=method in _SHORT_CALLS,
            )
        except NereidError as error:
            reply = error
        except OSError:
            _log.debug("a model's call cannot be made", exc_info=True)
        finally:
            on_reply(reply)


class MeshRequest:
    """A request of a model. It is cancelled at its deadline."""

    def __init__(
        self,
        mesh: Mesh,
        requests: PendingRequests,
        request: InferRequest,
        on_response: OnResponse,
    ) -> None:
        self.request = request
        self._mesh = mesh
        self._requests = requests
        self._on_response = on_response
        self._pending: PendingRequest | None = None
        self._is_cancelled = False
        self._deadline_timer: asyncio.TimerHandle | None = None

    def submit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send the request, unless it is cancelled; called on the event loop."""
        if self._is_cancelled:
            return
        deadline = self.request.deadline
        if deadline is not None:
            left_s = max(0.0, deadline - time.monotonic())
            self._deadline_timer = loop.call_later(left_s, self._on_deadline)
        self._pending = self._requests.infer(self.request, self._forward_response)

    def refuse(self, error_status: ErrorStatus) -> None:
        """Respond with an error instead of sending the request; called on the event loop."""
        if not self._is_cancelled:
            self._on_response(InferResponse(0, error=error_status))

    def send_control(self, kind: RequestControl) -> None:
        """Cancel the request, or pause or resume its responses. Thread-safe."""
        self._mesh.call_on_loop(lambda: self.on_receiver_event(kind))

    def on_receiver_event(self, kind: RequestControl) -> None:
        """Cancel, pause or resume, as send_control() does; called on the event loop."""
        if self._pending is None:
            self._is_cancelled = self._is_cancelled or kind == "cancel"
        elif kind == "cancel":
            self._stop_timer()
            self._pending.cancel()
        else:
            self._pending.set_flow(paused=kind == "pause")

    def _forward_response(self, response: InferResponse) -> None:
        if not response.more:
            self._stop_timer()
        self._on_response(response)

    def _on_deadline(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
        error = DeadlineExceeded(_DEADLINE_PASSED, accepted=True)
        self._on_response(InferResponse(self.request.id, error=error_status_of(error)))

    def _stop_timer(self) -> None:
        if self._deadline_timer is not None:
            # A pending timer would keep the request and its tensors in memory until the deadline.
            self._deadline_timer.cancel()
            self._deadline_timer = None
