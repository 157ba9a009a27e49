"""Copies of clients' requests for models' shadows.

    watch      a request is about to be sent: draw whether it is copied, and keep its inputs
    on_responded  its last response was handed out: send the copy, unless a budget is used up
    compare    the copy has its last response: both go to the process that compares

No client waits for any of it: what does not fit into a budget is counted and not copied.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import weakref
from collections import Counter, deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nereid.bounded_cache import BoundedCache
from nereid.comparison.process import ReportProcess
from nereid.comparison.shadow import MODEL, URL, VERSION, parse_shadow
from nereid.core.errors import Cancelled, DeadlineExceeded, Unavailable, is_worker_lost
from nereid.core.sequence_owners import SEQUENCE_ID, owner_of_copies, sequence_key
from nereid.core.wire.messages import NO_CAPACITY_FOR_COPY, error_status_of
from nereid.observability import metrics
from nereid.pb import kserve_pb2
from nereid_gateway.core.access.sequence_owners import sequence_owner
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_head import HeadReader
from nereid_gateway.core.tensors.tensor_memory import tensor_bytes
from nereid_gateway.extras.shadows.copy_pauses import BUSY, CopyPauses
from nereid_gateway.extras.shadows.exchanges import (
    CopiedExchange,
    CopiedRequest,
    CopyToServer,
    CountsQuestion,
    ModelQuestion,
    NotCompared,
    RawResponse,
    Reply,
    SetShadows,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from nereid.comparison.shadow import Shadow
    from nereid.core.correlation_ids import CorrelationId
    from nereid.core.wire.messages import InferResponse, ModelShadows, SequencePlace
    from nereid.observability.metrics_page import Page
    from nereid_gateway.core.request_handle import OnResponse, RequestHandle
    from nereid_gateway.extras.shadows.exchanges import ModelCounts

    ReportCounts = Callable[[str, str, ModelCounts], Awaitable[None]]
    SendCopy = Callable[[ClientRequest, OnResponse], RequestHandle]

_log = logging.getLogger(__name__)

_MODULE: Final = "nereid_gateway.extras.shadows"
# Copies of one shadow that were sent and have no response yet.
_MAX_IN_FLIGHT: Final = 16
# Inputs and outputs that are kept for all shadows, and of one request.
_MAX_HELD_BYTES: Final = 64 << 20
_MAX_COPY_BYTES: Final = 16 << 20
_MAX_QUEUED_BYTES: Final = 32 << 20
_MAX_RESPONSES: Final = 4096
_MAX_SEQUENCES: Final = 1024
_MAX_WAITING: Final = 64
_MAX_HEADS: Final = 2048
_MAX_HEAD_BYTES: Final = 8192
_POLL_S: Final = 1.0
_RESTART_S: Final = 1.0
# A process that takes longer to reply is replaced.
_STUCK_S: Final = 30.0
# The scheduler gives up first.
_GRACE_S: Final = 0.5

(FULL, TOO_LARGE, TIMEOUT, NOT_READY, FAILED, SEQUENCE, ELSEWHERE, QUEUE, NO_PROCESS, INTERNAL) = (
    "too many copies were in flight",
    "the request and its responses were too large",
    "the copy timed out",
    "the shadow was not ready",
    "the request failed",
    "a request of its sequence was not copied",
    "its sequence began at another gateway, or before the shadow was set",
    "the queue was full",
    "the process that compares had not started",
    "an internal error",
)
_GIVEN_UP: Final = error_status_of(Cancelled("no further copy of the sequence is sent"))


class Shadows:
    """Shadows of models, as the schedulers have announced them."""

    def __init__(
        self,
        report_counts: ReportCounts,
        *,
        max_in_flight: int = _MAX_IN_FLIGHT,
        max_held_bytes: int = _MAX_HELD_BYTES,
        max_copy_bytes: int = _MAX_COPY_BYTES,
        stuck_s: float = _STUCK_S,
    ) -> None:
        """Copy nothing yet. report_counts: reports a model's counts to the schedulers."""
        self._report_counts = report_counts
        self.max_in_flight = max_in_flight
        self.max_copy_bytes = max_copy_bytes
        self._stuck_s = stuck_s
        self._max_held_bytes = max_held_bytes
        self._held_bytes = 0
        self._heads = HeadReader()
        self._models: dict[str, _Model] = {}
        self._send: SendCopy | None = None
        self._process: ReportProcess | None = None
        # The last one, also while it starts or is closed.
        self._started: ReportProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._announced = asyncio.Event()
        self._texts: dict[str, str] = {}
        # As the process has last reported them.
        self.counts: dict[str, ModelCounts] = {}
        self._closed = False

    def set_shadows(self, notice: ModelShadows, send: SendCopy) -> bool:
        """Set the shadows; return whether there is any. send: sends a copy into the mesh."""
        texts = {} if self._closed else dict(notice.models)
        self._send = send
        for name in [name for name in self._models if texts.get(name) != self._texts.get(name)]:
            self._models.pop(name).close()
        for name, text in texts.items():
            if name in self._models:
                continue
            try:
                self._models[name] = _Model(self, name, parse_shadow(text))
            except ValueError as error:
                # A scheduler of a later release has announced it.
                _log.warning(
                    "the settings of the shadow of model '%s' cannot be read: %s", name, error
                )
        self._texts = {name: texts[name] for name in self._models}
        if self._models and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run_process())
        self._announced.set()
        return bool(self._models)

    def watch(self, request: ClientRequest, on_response: OnResponse) -> OnResponse:
        """Return what gets a request's responses, so that it can be copied after the last one."""
        model = self._models.get(self._heads.model_of(request.head))
        if model is None or request.error_status is not None:
            return on_response
        if self._process is None:
            model.not_compared[NO_PROCESS] += 1
            return on_response
        try:
            return model.watch(request, on_response)
        except Exception:
            # It must not fail the client's request.
            _log.exception("a request could not be copied for a shadow")
            model.not_compared[INTERNAL] += 1
            return on_response

    def hold(self, owner: object, size_bytes: int) -> bool:
        """Charge bytes until an object is collected; return False if they do not fit."""
        if self._held_bytes + size_bytes > self._max_held_bytes:
            return False
        self._held_bytes += size_bytes
        weakref.finalize(owner, self._release, size_bytes).atexit = False
        return True

    def send(self, request: ClientRequest, on_response: OnResponse) -> RequestHandle:
        """Send a copy into the mesh."""
        assert self._send is not None
        return self._send(request, on_response)

    def submit(self, model: str, message: object, size_bytes: int = 0) -> bool:
        """Hand a message to the process; return False if it was dropped.

        size_bytes: of the tensors in the message.
        """
        process = self._process
        return process is not None and process.submit(model, message, size_bytes)

    @property
    def is_comparing(self) -> bool:
        """True if the process that compares runs."""
        return self._process is not None

    async def report(self, name: str) -> dict[str, Any] | None:
        """Return the report of a model's shadow; `None` if the model has none.

        Raises Unavailable if no process runs.
        """
        model = self._models.get(name)
        if model is None:
            return None
        self._send_not_compared()
        if self._process is None:
            raise Unavailable("no process compares responses")
        document = await self._process.ask_in_order(ModelQuestion(name))
        return {**document, "sent": model.sent} if document else None

    def write_metrics(self, page: Page) -> None:
        """Add the series of shadows to a page. Counts are a second old at most."""
        for name, model in sorted(self._models.items()):
            page.add_value(metrics.SHADOW_COPIES, model.sent, {"model": name})
        for name, counts in sorted(self.counts.items()):
            page.add_value(metrics.SHADOW_COMPARED, counts.compared, {"model": name})
            for reason, number in sorted(counts.not_compared.items()):
                labels = {"model": name, "reason": reason}
                page.add_value(metrics.SHADOW_NOT_COMPARED, number, labels)
            for kind, number in sorted(counts.kinds.items()):
                labels = {"model": name, "kind": kind}
                page.add_value(metrics.SHADOW_DIFFERENCES, number, labels)

    def stop(self) -> None:
        """Cancel all copies, and copy no further request."""
        self._closed = True
        for model in self._models.values():
            model.close()
        self._models.clear()

    async def close(self) -> None:
        """Stop, and end the process."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._started is not None:
            # The task may have been cancelled while it closed the process.
            await self._started.close()

    def _release(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes

    def _send_not_compared(self) -> None:
        for name, model in self._models.items():
            reasons, model.not_compared = model.not_compared, Counter()
            for reason, number in reasons.items():
                if not self.submit(name, NotCompared(name, reason, number)):
                    model.not_compared[reason] += number

    async def _run_process(self) -> None:
        """Keep a process while there are shadows, and read its counts."""
        while True:
            while not self._models:
                self._announced.clear()
                await self._announced.wait()
            process = ReportProcess(_MODULE, None, max_queued_bytes=_MAX_QUEUED_BYTES)
            self._started = process
            try:
                await process.start()
                self._process = process
                await self._read_counts(process)
            except (OSError, Unavailable) as error:
                _log.warning(
                    "the process that compares copies has ended or is stuck; restarting it: %s",
                    error,
                )
            finally:
                self._process = None
                self.counts = {}
                await process.close()
            if self._models:
                await asyncio.sleep(_RESTART_S)

    async def _read_counts(self, process: ReportProcess) -> None:
        """Read counts every second, until there is no shadow any more."""
        self._announced.set()
        while self._models:
            if self._announced.is_set():
                self._announced.clear()
                process.submit("", SetShadows(self._texts), 0)
            self._send_not_compared()
            async with asyncio.timeout(self._stuck_s):
                before, self.counts = self.counts, await process.ask_in_order(CountsQuestion())
            for name, counts in self.counts.items():
                if before.get(name) != counts and name in self._texts:
                    await self._report_counts(name, self._texts[name], counts)
            # wait_for() of Python 3.11 loses a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._announced.wait()


class _Model:
    """Shadow of one model."""

    def __init__(self, shadows: Shadows, name: str, shadow: Shadow) -> None:
        self.shadows = shadows
        self.name = name
        self.shadow = shadow
        self.sent = 0
        self.not_compared: Counter[str] = Counter()
        self._copies: set[_Copy] = set()
        self._is_closed = False
        self._pauses = CopyPauses()
        self._sequences: dict[Hashable, _Sequence] = {}
        # Keys of sequences that have begun here, or of which it is known that they have not.
        self._known_sequences: BoundedCache[Hashable, bool] = BoundedCache(_MAX_SEQUENCES)
        # Key: the head of a request. Value: of its copy.
        self._heads: BoundedCache[bytes, bytes] = BoundedCache(_MAX_HEADS, _MAX_HEAD_BYTES)
        # Key: the head of a response. Value: the version that it names.
        self._versions: BoundedCache[bytes, str] = BoundedCache(_MAX_HEADS, _MAX_HEAD_BYTES)

    def watch(self, request: ClientRequest, on_response: OnResponse) -> OnResponse:
        """Return on_response, or what stands before it if the request is to be copied."""
        sequence: _Sequence | None = None
        parameters = request.parameters or {}
        correlation_id: Any = parameters.get(SEQUENCE_ID, 0)
        if correlation_id:
            sequence = self._find_sequence(request, correlation_id)
            if sequence is None:
                return on_response
            request.wants_sequence_place = True
            if sequence.is_ended:
                return partial(self._on_responded_elsewhere, sequence, on_response)
        elif not self._draw() or self._is_pausing():
            return on_response
        watched = _Watched(self, request, on_response, sequence)
        if not watched.hold_inputs(request):
            return on_response
        return watched.on_response

    def drop(self, watched: _Watched, reason: str) -> None:
        """Count a request as not compared; the rest of its sequence is not copied either."""
        if self._is_closed:
            return
        self.not_compared[reason] += 1
        if watched.sequence is not None:
            self._end_sequence(watched.sequence)

    def on_responded(self, watched: _Watched) -> None:
        """Send the copy of a request that has its last response, or have it wait its turn."""
        sequence = watched.sequence
        if self._is_closed:
            return
        if self.shadow.kind == VERSION and self._version_of(watched) == self.shadow.target:
            # The shadow itself has responded.
            if sequence is not None:
                self._end_sequence(sequence)
            return
        if sequence is None:
            self._send(watched)
        elif sequence.is_ended or not sequence.goes_on_with(watched):
            # The client has cancelled the one before, did not wait for it, or has sent it, or an
            # END and another START, by another gateway.
            self.drop(watched, SEQUENCE)
        elif sequence.is_busy:
            sequence.responded += 1
            if len(sequence.waiting) < _MAX_WAITING:
                sequence.waiting.append(watched)
            else:
                self.drop(watched, FULL)
        else:
            sequence.responded += 1
            sequence.is_busy = True
            self._send(watched)

    def on_copied(self, copy: _Copy, reason: str = "") -> None:
        """Handle the end of a copy. reason: why it has no response."""
        self._copies.discard(copy)
        watched = copy.watched
        if reason == BUSY:
            self._pauses.on_busy(time.monotonic())
        elif reason == TIMEOUT or copy.has_crashed:
            self._pauses.on_failed(time.monotonic())
        else:
            self._pauses.on_responded()
        if reason:
            self.drop(watched, reason)
        else:
            exchange = CopiedExchange(watched.copied(), watched.reply(), copy.reply())
            if not self.shadows.submit(self.name, exchange, watched.size_bytes + copy.size_bytes):
                self.not_compared[QUEUE] += 1
        sequence = watched.sequence
        if sequence is None:
            return
        sequence.is_busy = False
        if watched.ends_sequence:
            # An ensemble's step that refuses its last request keeps later ones from getting theirs.
            sequence.has_slot = copy.has_failed
            self._end_sequence(sequence)
        elif sequence.waiting:
            sequence.is_busy = True
            self._send(sequence.waiting.popleft())

    def close(self) -> None:
        """Cancel all copies."""
        self._is_closed = True
        for copy in self._copies:
            copy.cancel()
        self._copies.clear()
        for sequence in list(self._sequences.values()):
            self._end_sequence(sequence)

    def head_of_copy(self, head: bytes) -> bytes:
        """Return the head of a copy for a request's head."""
        known = self._heads.get(head)
        if known is not None:
            return known
        message = kserve_pb2.ModelInferRequest.FromString(head)
        if self.shadow.kind == MODEL:
            message.model_name, message.model_version = self.shadow.target, ""
        else:
            message.model_version = self.shadow.target
        return self._heads.remember(head, message.SerializeToString())

    def _send(self, watched: _Watched) -> None:
        if self.shadow.kind == URL:
            message = CopyToServer(watched.copied(), watched.reply())
            if self.shadows.submit(self.name, message, watched.size_bytes):
                self.sent += 1
            else:
                self.not_compared[QUEUE] += 1
            return
        if len(self._copies) >= self.shadows.max_in_flight:
            self.drop(watched, FULL)
            if watched.sequence is not None:
                watched.sequence.is_busy = False
            return
        self.sent += 1
        copy = _Copy(self, watched)
        self._copies.add(copy)
        if watched.sequence is not None:
            watched.sequence.has_slot = True
        copy.send()

    def _is_pausing(self) -> bool:
        """Return whether no copy may be sent now; count the request if so."""
        reason = self._pauses.reason(time.monotonic())
        if reason:
            self.not_compared[reason] += 1
        return bool(reason)

    def _draw(self) -> bool:
        return random.random() * 100 < self.shadow.percent  # noqa: S311 - a sample

    def _find_sequence(
        self, request: ClientRequest, correlation_id: CorrelationId
    ) -> _Sequence | None:
        parameters = request.parameters or {}
        owner = sequence_owner(request.sender, limits_addresses=False)
        key = sequence_key(correlation_id, owner)
        if self.shadow.kind == URL:
            return None
        if parameters.get("sequence_start"):
            if key in self._sequences:
                self._end_sequence(self._sequences[key])
            self._known_sequences.remember(key, True)
            if not self._draw() or self._is_pausing():
                return None
            if len(self._sequences) >= _MAX_SEQUENCES:
                # Its client may never end it.
                self._end_sequence(next(iter(self._sequences.values())))
            self._sequences[key] = _Sequence(key, correlation_id, owner)
        sequence = self._sequences.get(key)
        if sequence is None and self.shadow.percent and key not in self._known_sequences:
            self._known_sequences.remember(key, True)
            self.not_compared[ELSEWHERE] += 1
            sequence = _Sequence(key, correlation_id, owner)
            sequence.is_ended = True
        if parameters.get("sequence_end"):
            # The next sequence with this id may begin at another gateway.
            self._known_sequences.pop(key, None)
        return sequence

    def _end_sequence(self, sequence: _Sequence) -> None:
        sequence.is_ended = True
        if sequence.waiting:
            self.not_compared[SEQUENCE] += len(sequence.waiting)
            sequence.waiting.clear()
        if self._sequences.get(sequence.key) is sequence:
            del self._sequences[sequence.key]
        if sequence.has_slot:
            sequence.has_slot = False
            self._send_end(sequence)

    def _on_responded_elsewhere(
        self, sequence: _Sequence, on_response: OnResponse, response: InferResponse
    ) -> None:
        """Hand out a response of a sequence that another gateway may copy.

        The copies would lack this request. They end now, so that they keep no slot.
        """
        place = response.sequence_place
        on_response(response)
        if place is not None and not self._is_closed:
            sequence.start = place.start
            self._send_end(sequence)

    def _send_end(self, sequence: _Sequence) -> None:
        """Send a request that no model executes, and that ends a sequence of copies."""
        naming = kserve_pb2.ModelInferRequest(model_name=self.name)
        end = ClientRequest(0, self.head_of_copy(naming.SerializeToString()), [])
        end.parameters = {SEQUENCE_ID: sequence.correlation_id}
        sequence.add_to(end, self.name)
        end.is_shadow = end.accepts_many = True
        end.error_status = _GIVEN_UP
        self.shadows.send(end, _ignore)

    def _version_of(self, watched: _Watched) -> str:
        head = watched.responses[0].head if watched.responses else b""
        version = self._versions.get(head)
        if version is None:
            message = kserve_pb2.ModelInferResponse.FromString(head)
            version = self._versions.remember(head, message.model_version)
        return version


class _Sequence:
    """Sequence whose requests are copied, one after the other."""

    __slots__ = (
        "asked",
        "correlation_id",
        "has_slot",
        "is_busy",
        "is_ended",
        "key",
        "owner",
        "responded",
        "start",
        "waiting",
    )

    def __init__(self, key: Hashable, correlation_id: CorrelationId, owner: str) -> None:
        """key: of `sequence_key`. owner: of the client's sequence."""
        self.key = key
        self.correlation_id = correlation_id
        self.owner = owner
        # Numbers of the last request, and of the last one that has its response.
        self.asked = self.responded = 0
        # See SequencePlace; 0 before START has its response.
        self.start = 0
        self.waiting: deque[_Watched] = deque()
        # True while a copy has no response.
        self.is_busy = False
        self.is_ended = False
        # True if the shadow waits for further copies.
        self.has_slot = False

    def goes_on_with(self, watched: _Watched) -> bool:
        """Return whether a request that has its response follows on the one before."""
        number, place = self.responded + 1, watched.place
        if place is None or not watched.number == place.number == number:
            return False
        if number == 1:
            self.start = place.start
        return place.start == self.start

    def add_to(self, copy: ClientRequest, model: str) -> None:
        """Make a request one of this sequence's copies, for the shadow of a model."""
        copy.sequence_owner = owner_of_copies(model, self.owner)
        copy.copied_sequence = self.start


class _Collector:
    """Responses to one request, as bytes of their own within the budgets."""

    def __init__(self, model: _Model) -> None:
        self.model = model
        self.responses: list[RawResponse] = []
        self.size_bytes = 0
        self._begin_s = time.perf_counter()
        self._latency_s = 0.0

    def reply(self) -> Reply:
        """Return what was collected."""
        return Reply(self.responses, self._latency_s)

    def hold(self, size_bytes: int) -> str:
        """Charge bytes; return the reason if they do not fit."""
        self.size_bytes += size_bytes
        if self.size_bytes > self.model.shadows.max_copy_bytes:
            return TOO_LARGE
        return "" if self.model.shadows.hold(self, size_bytes) else FULL

    def collect(self, response: InferResponse, payloads: Sequence[Any]) -> str:
        """Keep a response; return the reason if it does not fit."""
        if not response.more:
            self._latency_s = time.perf_counter() - self._begin_s
        if response.error is not None:
            error = response.error.code, response.error.message
            self.responses.append(RawResponse(b"", (), error))
            return ""
        if not response.head:
            return ""
        reason = self.hold(len(response.head) + sum(map(len, payloads)))
        if not reason and len(self.responses) >= _MAX_RESPONSES:
            reason = TOO_LARGE
        if not reason:
            raw = tuple(bytes(payload) for payload in payloads)
            self.responses.append(RawResponse(response.head, raw))
        return reason


class _Watched(_Collector):
    """Request of a client that is to be copied."""

    def __init__(
        self,
        model: _Model,
        request: ClientRequest,
        on_response: OnResponse,
        sequence: _Sequence | None,
    ) -> None:
        super().__init__(model)
        self.sequence = sequence
        self.number = 0
        # As the last response states it.
        self.place: SequencePlace | None = None
        if sequence is not None:
            self.number = sequence.asked = sequence.asked + 1
        self.ends_sequence = bool((request.parameters or {}).get("sequence_end"))
        self._request = request
        # A scheduler in this process may change the request.
        self._head, self._parameters = request.head, dict(request.parameters or {})
        self._on_response = on_response
        self._payloads: list[bytes] = []
        self._is_dropped = False

    def hold_inputs(self, request: ClientRequest) -> bool:
        """Keep the inputs; return False if they do not fit, and the request is not copied."""
        # A segment is reused when the response has come, so that its bytes have to be copied now.
        payloads = [tensor_bytes(request, payload) for payload in request.payloads]
        reason = self.hold(sum(map(len, payloads)))
        if reason:
            self.model.drop(self, reason)
            return False
        self._payloads = [bytes(payload) for payload in payloads]
        return True

    def copied(self) -> CopiedRequest:
        """Return the request with the bytes of its inputs."""
        request = self._request
        return CopiedRequest(
            self.model.name,
            self._head,
            self._payloads,
            request.request_id,
            self._parameters,
        )

    def make_copy(self) -> ClientRequest:
        """Return the request to send."""
        request = self._request
        copy = ClientRequest(
            0,
            self.model.head_of_copy(self._head),
            list(self._payloads),
            request.request_id,
            dict(self._parameters),
        )
        copy.deadline = time.monotonic() + self.model.shadow.timeout_s
        copy.accepts_many = True
        if self.sequence is not None:
            self.sequence.add_to(copy, self.model.name)
        copy.is_shadow = True
        copy.callable_models = request.callable_models
        return copy

    def on_response(self, response: InferResponse) -> None:
        """Hand a response out, then keep it for the comparison."""
        payloads: Sequence[Any] = response.payloads
        self._on_response(response)
        if self._is_dropped:
            return
        try:
            self._observe(response, payloads)
        except Exception:
            # The client has its response, and must not get another one.
            _log.exception("a request could not be copied for a shadow")
            self._drop(INTERNAL)

    def _observe(self, response: InferResponse, payloads: Sequence[Any]) -> None:
        reason = FAILED if response.error is not None else self.collect(response, payloads)
        if reason:
            self._drop(reason)
        elif not response.more:
            self.place = response.sequence_place
            self.model.on_responded(self)

    def _drop(self, reason: str) -> None:
        self._is_dropped = True
        self.model.drop(self, reason)


class _Copy(_Collector):
    """Copy that was sent into the mesh."""

    def __init__(self, model: _Model, watched: _Watched) -> None:
        super().__init__(model)
        self.watched = watched
        self._handle: RequestHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        # True if the shadow's worker has ended while it executed the copy.
        self.has_crashed = False

    @property
    def has_failed(self) -> bool:
        """True if the shadow has responded with an error."""
        return any(response.error is not None for response in self.responses)

    def send(self) -> None:
        """Send the copy."""
        handle = self.model.shadows.send(self.watched.make_copy(), self.on_response)
        if self._has_ended:
            return
        self._handle = handle
        limit_s = self.model.shadow.timeout_s + _GRACE_S
        self._timer = asyncio.get_running_loop().call_later(limit_s, self._end, TIMEOUT)

    def cancel(self) -> None:
        """Cancel the copy without an outcome."""
        self._finish(cancels=True)

    def on_response(self, response: InferResponse) -> None:
        """Keep a response of the shadow."""
        if self._has_ended:
            return
        error = response.error
        if error is not None:
            self.has_crashed = is_worker_lost(error.message)
            reason = _reason_of(error.code, error.message, accepted=error.accepted)
            if reason:
                self._end(reason)
                return
        reason = self.collect(response, response.payloads)
        if reason or not response.more:
            self._end(reason)

    def _end(self, reason: str) -> None:
        self._finish(cancels=bool(reason))
        self.model.on_copied(self, reason)

    def _finish(self, *, cancels: bool) -> None:
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        handle, self._handle, self._timer = self._handle, None, None
        if cancels and handle is not None:
            handle.cancel()


def _ignore(_: InferResponse) -> None:
    pass


def _reason_of(code: int, message: str, *, accepted: bool) -> str:
    """Return why an error is no response of the shadow; empty if it is one."""
    # A step of an ensemble, or a model that calls others, may pass the text on.
    if NO_CAPACITY_FOR_COPY.message in message:
        return BUSY
    if code == DeadlineExceeded.code:
        return TIMEOUT
    # The model is not loaded, or a scheduler is lost.
    return NOT_READY if code == Unavailable.code and not accepted else ""
