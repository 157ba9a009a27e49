"""What models ask of the mesh: answers of other models, loads and unloads; asked of the scheduler
as a gateway would.

Lives on the event loop; asked by instances' threads, who are called back on the loop. The link is
opened by the first who asks for it. Tensors may lie in shared memory: those of requests in segments
of the models' processes, which know when they are done with; those of answers in executors', which
go back there when whoever got the answer says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from nereid import rpc
from nereid.core.codecs import RequestCodec, ResponseCodec
from nereid.core.errors import DeadlineExceeded, NereidError, Unavailable, error_of
from nereid.core.messages import (
    CachedModels,
    Cancel,
    FlowControl,
    InferResponse,
    Release,
    SharedMemory,
    error_status_of,
)
from nereid.core.methods import DOMAIN_KEY, INFER_PATH, SCHEDULER
from nereid.shm.mappings import LostError, exists, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import FromScheduler, InferRequest, ToScheduler

    OnResponse = Callable[[InferResponse], None]
    OnReply = Callable[[bytes | NereidError], None]

_log = logging.getLogger(__name__)

_UNREACHABLE: Final = "the scheduler cannot be reached"
# Of loads and unloads, which take as long as they take, there is no limit.
_SHORT_CALL_S: Final = 30.0
_MOST_LOST: Final = 2
_SHORT_CALLS: Final = frozenset({"ModelReady"})


class _Pending:
    """A request under way."""

    __slots__ = ("lost", "on_response", "request", "responses", "timer")

    def __init__(self, request: InferRequest, on_response: OnResponse) -> None:
        self.request = request
        self.on_response = on_response
        # How many it has had; there is more to come.
        self.responses = 0
        # How often its answer was lost with the executor that had made it.
        self.lost = 0
        # Rings at the deadline.
        self.timer: asyncio.TimerHandle | None = None

    def end(self, response: InferResponse | None) -> None:
        """The last there is to tell; None: nobody wants to know."""
        if self.timer is not None:
            # Else the request, and its tensors, would stay in memory until then.
            self.timer.cancel()
        if response is not None:
            self.on_response(response)


class _Codec:
    """Requests out, answers in."""

    def __init__(self) -> None:
        out = RequestCodec()
        self.size_bytes, self.encode = out.size_bytes, out.encode
        self.decode = ResponseCodec().decode


class Mesh:
    """The mesh as one stay's models see it; all but close() may be called from any thread."""

    def __init__(
        self,
        channel: rpc.Channel,
        domain: str = "",
        memory: tuple[int, float] | None = None,
    ) -> None:
        """domain: the memory that this process can share; memory: how, see backends.Mesh."""
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._domain = domain
        self.memory = memory if domain else None
        self._link: rpc.Link[ToScheduler] | None = None
        # The link is up, and the scheduler has said whether it can hand on what lies in memory.
        self._greeted = False
        self._shared = False
        self._last_id = 0
        self._pending: dict[int, _Pending] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._closed = False

    def infer(self, request: InferRequest, on_response: OnResponse) -> Asked:
        """Have a request executed; on_answer hears all its answers."""
        asked = Asked(self, request)
        self._from_thread(lambda: self._submit(request, on_response))
        return asked

    def call(self, method: str, message: bytes, on_reply: OnReply) -> None:
        """Call a control method of the scheduler's."""
        self._from_thread(lambda: self._call(method, message, on_reply))

    def give_back(self, segment_name: str) -> None:
        """Nobody reads the answer that lies in this segment any more."""
        self._from_thread(lambda: self._release(segment_name))

    def close(self) -> None:
        """The stay is over: nobody will answer any more."""
        self._closed = True
        if self._link is not None:
            self._link.close()
        for task in self._calls:
            task.cancel()
        self._fail_all()

    def _from_thread(self, work: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            _log.debug("an instance outlived the event loop")

    # ---- requests

    def _submit(self, request: InferRequest, on_response: OnResponse) -> None:
        self._last_id += 1
        request.id = self._last_id
        if self._closed:
            on_response(InferResponse(request.id, error=error_status_of(Unavailable(_UNREACHABLE))))
            return
        self._pending[request.id] = pending = _Pending(request, on_response)
        if request.deadline is not None:
            left_s = max(0.0, request.deadline - time.monotonic())
            pending.timer = self._loop.call_later(left_s, self._expire, request)
        if self._link is None:
            self._open()
        elif self._greeted:
            self._send(request)

    def _open(self) -> None:
        self._link = rpc.dial_link(
            self._channel,
            INFER_PATH,
            _Codec(),
            metadata=((DOMAIN_KEY, self._domain),),
            on_items=self._on_items,
            # Nothing is sent before the scheduler has spoken.
            on_up=lambda: None,
            on_down=self._on_down,
        )

    def _on_greeting(self, greeting: CachedModels) -> None:
        """The scheduler's first words on a link that came up; it may say them again."""
        self._shared = bool(self._domain) and greeting.memory_domain == self._domain
        if not self._greeted:
            self._greeted = True
            for pending in list(self._pending.values()):
                self._send(pending.request)

    def _send(self, request: InferRequest) -> None:
        assert self._link is not None, "the scheduler spoke before it was dialled"
        if not self._shared:
            try:
                request.payloads = [
                    read(each) if isinstance(each, SharedMemory) else each
                    for each in request.payloads
                ]
            except LostError:
                _log.debug("a model's process ended before its request was sent")
        self._link.send(request)

    def _on_down(self) -> None:
        self._greeted = False
        # With the scheduler everything that this executor has goes as well.
        self._fail_all()

    def _fail_all(self) -> None:
        failed, self._pending = self._pending, {}
        error_status = error_status_of(Unavailable(_UNREACHABLE))
        for pending in failed.values():
            pending.end(InferResponse(pending.request.id, error=error_status))

    def _on_items(self, items: list[FromScheduler]) -> None:
        for item in items:
            if isinstance(item, InferResponse):
                self._on_response(item)
            elif isinstance(item, CachedModels):
                self._on_greeting(item)
            else:
                _log.debug("the scheduler told models what only gateways need to know")

    def _on_response(self, response: InferResponse) -> None:
        pending = self._pending.get(response.id)
        if pending is None:
            if response.segment_name:
                self._release(response.segment_name)
            return
        if response.more:
            pending.responses += 1
            pending.on_response(response)
        elif (
            not response.segment_name
            or exists(response.segment_name)
            or not self._ask_again(pending, response.segment_name)
        ):
            del self._pending[response.id]
            pending.end(response)

    def _ask_again(self, pending: _Pending, segment_name: str) -> bool:
        """The executor died between its answer and our look at it; False: that is the answer."""
        pending.lost += 1
        if pending.responses or pending.lost > _MOST_LOST:
            return False
        _log.warning(
            "the answer to a model's request was lost with its executor: it is asked again"
        )
        self._release(segment_name)
        self._send(pending.request)
        return True

    def _release(self, segment_name: str) -> None:
        if self._greeted and self._link is not None:
            self._link.send(Release((segment_name,)))

    def tell(self, request: InferRequest, kind: str) -> None:
        """What has become of a request at its asker's; on the loop."""
        if kind == "cancel":
            pending = self._pending.pop(request.id, None)
            if pending is not None:
                pending.end(None)
        else:
            pending = self._pending.get(request.id)
        if pending is not None and self._greeted and self._link is not None:
            if kind == "cancel":
                self._link.send(Cancel(request.id))
            else:
                self._link.send(FlowControl(request.id, paused=kind == "pause"))

    def _expire(self, request: InferRequest) -> None:
        pending = self._pending.get(request.id)
        if pending is not None:
            self.tell(request, "cancel")
            late = DeadlineExceeded(
                "the deadline of the requests that it is for passed", accepted=True
            )
            pending.on_response(InferResponse(request.id, error=error_status_of(late)))

    # ---- calls

    def _call(self, method: str, message: bytes, on_reply: OnReply) -> None:
        task = asyncio.ensure_future(self._called(method, message, on_reply))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _called(self, method: str, message: bytes, on_reply: OnReply) -> None:
        reply: bytes | NereidError = Unavailable(_UNREACHABLE)
        try:
            timeout_s = _SHORT_CALL_S if method in _SHORT_CALLS else None
            reply = await self._channel.unary(SCHEDULER + method, message, timeout_s=timeout_s)
        except rpc.RpcError as error:
            reply = error_of(int(error.status), error.message)
        except OSError:
            _log.debug("a model's call cannot be made", exc_info=True)
        finally:
            on_reply(reply)


class Asked:
    """A request to the mesh, in the hands of whoever asked."""

    def __init__(self, mesh: Mesh, request: InferRequest) -> None:
        self._mesh = mesh
        self._request = request

    def tell(self, kind: str) -> None:
        """What has become of it here: cancel, pause or resume. From any thread."""
        self._mesh._from_thread(lambda: self._mesh.tell(self._request, kind))  # noqa: SLF001
