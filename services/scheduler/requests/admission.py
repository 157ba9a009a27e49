"""From a gateway's request to the model version that takes it, and the answers back on its link.

One dictionary look-up by the head's bytes on the hot path. Requests for a model whose first load is
under way are held until that is decided. Knows no queue and no transport.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import DecodeError

from nereid.core.errors import (
    INTERNAL_MESSAGE,
    DeadlineExceeded,
    Internal,
    NereidError,
    Unavailable,
    error_of,
)
from nereid.core.messages import Cancel, FlowControl, InferRequest, InferResponse, error_status_of
from nereid.observability.logging import about
from nereid.observability.tracing import is_sampled
from nereid.pb import kserve_pb2
from nereid.services.scheduler.ensembles.ensemble_version import EnsembleVersion
from nereid.services.scheduler.models.decoupled_version import DecoupledVersion, check_taker
from nereid.services.scheduler.observability.entry_trace import Refusal
from nereid.services.scheduler.requests.entry import Entry
from nereid.services.scheduler.requests.shared_tensors import SharedTensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import ToScheduler
    from nereid.services.scheduler.models.catalogue import Catalogue
    from nereid.services.scheduler.models.model_version import ModelVersion
    from nereid.services.scheduler.observability.entry_trace import Traces
    from nereid.services.scheduler.requests.nested_calls import Lineage

    OnResponse = Callable[[InferResponse], None]
    # A held request, by its id, is somewhere else now.
    OnTaken = Callable[[int, "Ticket"], None]

_log = logging.getLogger(__name__)

STOPPING: Final = (
    "Server is stopping, scheduler for model has stopped accepting new inference requests"
)
_MOST_HEADS: Final = 4096
_LARGEST_REMEMBERED_HEAD_BYTES: Final = 4096


@dataclass(slots=True, eq=False)
class Held:
    """A request for a model that is being loaded."""

    request: InferRequest
    name: str
    version: str
    on_response: OnResponse
    on_taken: OnTaken
    since_ns: int
    timer: asyncio.TimerHandle | None = None


# What a request is cancelled by: whoever has it, and what it is there.
Ticket = tuple["ModelVersion | HoldingRoom", "Entry | Held"]


class HoldingRoom:
    """Requests that wait for their model's first load, each for a limited time."""

    def __init__(self, limit_s: float, most: int) -> None:
        self._limit_s = limit_s
        self._most = most
        self._held: dict[Held, None] = {}
        self._idle: asyncio.Future[None] | None = None
        # Hears of those whose model did not come, before they are answered.
        self.on_given_up: Callable[[Held, NereidError], None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, held: Held) -> None:
        """Keep a request for later; raises Unavailable when too many are here."""
        if self._most and len(self._held) >= self._most:
            raise Unavailable("Exceeds maximum queue size")
        limit_s = self._limit_s
        text = f"model '{held.name}' is being loaded; waited {limit_s:g} s for it"
        error: NereidError = Unavailable(text, accepted=True)
        if held.request.deadline is not None:
            left_s = held.request.deadline - time.monotonic()
            if left_s < limit_s:
                limit_s = max(0.0, left_s)
                text = f"the deadline passed while model '{held.name}' was being loaded"
                error = DeadlineExceeded(text, accepted=True)
        self._held[held] = None
        held.timer = asyncio.get_running_loop().call_later(limit_s, self._give_up, held, error)

    def cancel(self, held: Held) -> None:
        """Nobody waits for it any more."""
        self.release(held)

    def release(self, held: Held) -> bool:
        """Take a request out; False if it is not here."""
        if held not in self._held:
            return False
        del self._held[held]
        if held.timer is not None:
            held.timer.cancel()
        if self._idle is not None and not self._held and not self._idle.done():
            self._idle.set_result(None)
        return True

    def all(self) -> list[Held]:
        """Everything that is held, in order of arrival."""
        return list(self._held)

    def fail_all(self, error: NereidError) -> None:
        """Answer everything that is held with this error."""
        for held in self.all():
            self._give_up(held, error)

    async def idle(self) -> None:
        """Wait until nothing is held. Only one may wait."""
        if self._held:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _give_up(self, held: Held, error: NereidError) -> None:
        self.release(held)
        if self.on_given_up is not None:
            self.on_given_up(held, error)
        held.on_response(InferResponse(held.request.id, error=error_status_of(error)))


class Intake:
    """Finds the model version of each request."""

    def __init__(
        self, catalogue: Catalogue, room: HoldingRoom, traces: Traces | None = None
    ) -> None:
        self._catalogue = catalogue
        self._room = room
        # None: no request is traced.
        self._traces = traces
        # Looks after requests that models make; None: none make any.
        self.lineage: Lineage | None = None
        if traces is not None:
            room.on_given_up = self._given_up
        self._by_head: dict[bytes, ModelVersion] = {}
        self._stopping = False
        self._retry_due = False

    def submit(
        self,
        request: InferRequest,
        on_response: OnResponse,
        on_taken: OnTaken,
        *,
        at_once: bool,
    ) -> Ticket:
        """Hand a request to its model. on_answer is called once, after this has returned.

        Raises:
            NereidError: it was refused; on_answer will not be called.
        """
        if request.caller and self.lineage is not None:
            return self._submit_for_model(self.lineage, request, on_response, on_taken)
        model = self._by_head.get(request.head)
        if model is None or request.error_status is not None:
            return self._submit_slowly(request, on_response, on_taken)
        return model, model.submit(request, on_response, at_once=at_once)

    def refused(self, request: InferRequest, error: NereidError, since_ns: int = 0) -> None:
        """No model has taken this request. since_ns 0: it came just now."""
        if self._traces is None or not is_sampled(request.trace_context):
            return
        try:
            name, version = _named(request.head)
        except NereidError:
            return  # nobody can say whose it was
        since_ns = since_ns or time.monotonic_ns()
        self._traces.refused(Refusal(request, name, version, since_ns, error.message))

    def stop(self) -> None:
        """Accept nothing from now on but what models ask for, on behalf of what was accepted; what
        is held may still find its model.
        """
        self._stopping = True
        self._by_head.clear()

    def models_changed(self) -> None:
        """Some version's state is another: forget what was found, look again for what was not."""
        self._by_head.clear()
        if len(self._room) and not self._retry_due:
            self._retry_due = True
            asyncio.get_running_loop().call_soon(self._retry)

    def _submit_slowly(
        self, request: InferRequest, on_response: OnResponse, on_taken: OnTaken
    ) -> Ticket:
        if self._stopping and not request.caller:
            raise Unavailable(STOPPING)
        name, version = _named(request.head)
        try:
            model = self._find(request, name, version)
        except NereidError:
            if not self._catalogue.is_loading(name, version):
                raise
            held = Held(request, name, version, on_response, on_taken, time.monotonic_ns())
            self._room.hold(held)
            return self._room, held
        return model, model.submit(request, on_response)

    def _submit_for_model(
        self, lineage: Lineage, request: InferRequest, on_response: OnResponse, on_taken: OnTaken
    ) -> Ticket:
        lineage.adopt(request)
        owner, what = self._submit_slowly(request, on_response, on_taken)
        if isinstance(what, Entry):
            _note(lineage, request, owner, what)  # type: ignore[arg-type]
        return owner, what

    def _find(self, request: InferRequest, name: str, version: str) -> ModelVersion:
        served = self._catalogue.find(name, version)
        assert served.runtime is not None, "ready, but not in service"
        if request.error_status is not None:
            check_taker(served.runtime.config, request)
            code, message, accepted = request.error_status
            raise error_of(code, message, accepted=accepted)
        if not self._stopping and len(request.head) <= _LARGEST_REMEMBERED_HEAD_BYTES:
            if len(self._by_head) >= _MOST_HEADS:
                self._by_head.clear()
            self._by_head[request.head] = served.runtime
        return served.runtime

    def _retry(self) -> None:
        self._retry_due = False
        for held in self._room.all():
            if not self._catalogue.is_loading(held.name, held.version):
                self._room.release(held)
                self._take(held)

    def _take(self, held: Held) -> None:
        request = held.request
        try:
            model = self._find(request, held.name, held.version)
            entry = model.submit(request, held.on_response)
            if request.caller and self.lineage is not None:
                _note(self.lineage, request, model, entry)
            held.on_taken(request.id, (model, entry))
        except Exception as error:
            told = _told(error, request)
            self.refused(request, told, held.since_ns)
            held.on_response(InferResponse(request.id, error=error_status_of(told)))

    def _given_up(self, held: Held, error: NereidError) -> None:
        self.refused(held.request, error, held.since_ns)


class GatewayLink(Protocol):
    """The scheduler's end of a gateway's link; nereid.rpc.Link is one."""

    def send(self, item: InferResponse) -> None:
        """Hand an answer over; it leaves with the others of this loop turn."""

    def flush(self) -> None:
        """Let go now of what was handed over."""


class GatewaySession:
    """One gateway's link: its requests under way, and their answers. Set link before items come."""

    link: GatewayLink
    _numbers = count(1)

    def __init__(
        self, intake: Intake, shared_tensors: SharedTensors | None = None, domain: str = ""
    ) -> None:
        """domain: the memory that the gateway can share."""
        self._intake = intake
        self._shared_tensors = shared_tensors or SharedTensors()
        self._shares = self._shared_tensors.shared_with(domain)
        # The segments that its answers lie in, until it says that it has done with them.
        self._lent: set[str] = set()
        # What tells this link from the others in metrics.
        self.number = next(self._numbers)
        self._pending: dict[int, Ticket] = {}
        # Bound once, not once for each request.
        self._on_response: OnResponse = self._response
        self._on_taken: OnTaken = self._pending.__setitem__

    @property
    def pending(self) -> int:
        """How many of its requests are unanswered."""
        return len(self._pending)

    def on_items(self, items: list[ToScheduler]) -> None:
        """Requests and cancellations of one frame."""
        # A lone request to an idle model is sent on without waiting for the end of the loop turn.
        alone = len(items) == 1
        for item in items:
            if isinstance(item, InferRequest):
                self._submit(item, alone)
            elif isinstance(item, Cancel):
                self._cancel(item.id)
            elif isinstance(item, FlowControl):
                self._set_flow(item)
            else:
                done = self._lent.intersection(item.segment_names)
                self._lent -= done
                self._shared_tensors.give_back(done)

    def on_down(self) -> None:
        """The link broke: a gateway that is still there sends its requests again on a new one."""
        for number in list(self._pending):
            self._cancel(number)
        self._shared_tensors.give_back(self._lent, discard=True)
        self._lent.clear()

    def _submit(self, request: InferRequest, at_once: bool) -> None:
        number = request.id
        try:
            self._pending[number] = self._intake.submit(
                request, self._on_response, self._on_taken, at_once=at_once
            )
        except Exception as error:
            self._refuse(request, _told(error, request))

    def _refuse(self, request: InferRequest, error: NereidError) -> None:
        # Apart from where the error is caught: a frame that holds its own error would keep the
        # request, and its memory, until the collector comes by.
        self._intake.refused(request, error)
        self.link.send(InferResponse(request.id, error=error_status_of(error)))

    def _cancel(self, number: int) -> None:
        ticket = self._pending.pop(number, None)
        if ticket is not None:
            owner, what = ticket
            owner.cancel(what)  # type: ignore[arg-type]

    def _set_flow(self, flow: FlowControl) -> None:
        owner, what = self._pending.get(flow.id, (None, None))
        if isinstance(owner, DecoupledVersion | EnsembleVersion):
            owner.set_flow(what, paused=flow.paused)  # type: ignore[arg-type]

    def _response(self, response: InferResponse) -> None:
        pending = self._pending
        if response.id not in pending:
            # Cancelled meanwhile: nobody wants the answer.
            self._shared_tensors.unwanted(response)
            return
        if response.segment_name:
            response = self._lend(response)
        self.link.send(response)
        if not response.more:
            del pending[response.id]
            if not pending:
                # Nothing else of this gateway's is under way that could share the frame.
                self.link.flush()

    def _lend(self, response: InferResponse) -> InferResponse:
        if not self._shares:
            return self._shared_tensors.bring_in(response)
        self._lent.add(response.segment_name)
        return response


def _note(lineage: Lineage, request: InferRequest, model: ModelVersion, entry: Entry) -> None:
    """A model's request is accepted; raises Unavailable, and takes it back, if it never ended."""
    try:
        lineage.note(request, model, entry)
    except NereidError:
        model.cancel(entry)
        raise


def _named(head: bytes) -> tuple[str, str]:
    try:
        message = kserve_pb2.ModelInferRequest.FromString(head)
    except DecodeError as error:
        raise Internal("a request's head is damaged") from error
    return message.model_name, message.model_version


def _told(error: Exception, request: InferRequest) -> NereidError:
    """What the client is told; a bug is logged, and told as no more than that."""
    if isinstance(error, NereidError):
        return error
    known = about(request.request_id, request.trace_context)
    _log.error("a request could not be taken in", exc_info=error, extra=known)
    return Internal(INTERNAL_MESSAGE)
