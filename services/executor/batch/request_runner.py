"""Batches for models that execute requests: from an instance's stream to the model and back.

The instance's thread waits for both at once and is never busy itself, so that a model can answer
while it executes, and long after. Knows no process: how a model runs is its backend's affair.
"""

from __future__ import annotations

import logging
import select
import time
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter_ns
from typing import TYPE_CHECKING

from nereid.backends import ModelLostError
from nereid.core.codecs import write_error
from nereid.core.errors import Internal, NereidError
from nereid.core.messages import ErrorStatus, SharedMemory, error_status_of
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.classification import Classes
from nereid.services.executor.batch.output_buffers import Rooms
from nereid.services.executor.batch.requests import Requests
from nereid.services.executor.batch.response_writer import ResponseWriter
from nereid.services.executor.batch.responses import failure, put
from nereid.services.executor.tracing import Run, record, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from nereid.backends import BatchUpdate, InstanceSpec, Request, RequestModel, Response
    from nereid.core.classification import Classification
    from nereid.observability.tracing import Tracer
    from nereid.rpc import BlockingStream
    from nereid.services.executor.batch.arrays import Piece

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Running:
    """A batch that is being executed, or, of a decoupled model, has requests without their end."""

    # The scheduler's number.
    id: int
    started_ns: int
    begun_ns: int
    # By member, in pieces; None: nothing yet. A decoupled model's are gone once they are sent.
    responses: list[Sequence[Piece] | None]
    # The model's members, which are those without a defect: their places in the batch.
    places: list[int]
    # Of the model's members.
    open: set[int]
    # Where some of them may put their outputs, until they have answered.
    rooms: dict[int, SharedMemory] = field(default_factory=dict)
    contexts: list[bytes] = field(default_factory=list)
    failed: str | None = None
    # Something was said of it.
    told: bool = False
    # Not of a decoupled model's: it was executed, and some of its requests were not answered.
    late: bool = False
    # By the model's member: which outputs it wants as classes.
    classes: dict[int, Mapping[str, Classification]] = field(default_factory=dict)


class RequestRunner:
    """Executes batches on one loaded model; used by its instance's thread alone."""

    def __init__(
        self,
        spec: InstanceSpec,
        model: RequestModel,
        tracer: Tracer | None = None,
    ) -> None:
        self.rooms = Rooms(foreseen=not model.decoupled)
        self._name = spec.name
        self._model = model
        self._tracer = tracer
        self._classes = Classes(spec.config, spec.version_path.parent)
        self._requests = Requests(tuple(tensor.name for tensor in spec.config.output))
        self._responses = ResponseWriter(self.rooms)
        # By the model's number for it: the scheduler's may come again with a new stream.
        self._running: dict[int, _Running] = {}
        self._numbers = 0
        # The one that the model executes now.
        self._current: int | None = None
        self._until: float | None = None

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._running)

    def execute(self, frame: bytes) -> bytes:
        """Run one Batch and wait for all its answers, as a warm-up does."""
        replies = list(self._begin(frame))
        poll = self._poll()
        while self.busy:
            replies += self._collect({descriptor for descriptor, _ in poll.poll()})
        whole = pb.Executed()
        for reply in replies:
            whole.MergeFromString(reply)
        return whole.SerializeToString()

    def serve(
        self, stream: BlockingStream, stopping: Callable[[], bool], on_batch: Callable[[], None]
    ) -> None:
        """Until the stream ends, or stopping and all is answered.

        on_batch: counts a completed batch. Raises ModelLostError once the model has ended, after
        failing what it was executing; the scheduler retries what it never saw.
        """
        poll = self._poll()
        source = stream.fileno()
        poll.register(source, select.POLLIN)
        try:
            self._forget()
            while self.busy or not stopping():
                wait_ms = 0 if stream.holds else self._wait_ms()
                ready = {descriptor for descriptor, _ in poll.poll(wait_ms)}
                # Who has nothing is not asked: that would be a system call each.
                arrived = source in ready or stream.holds
                ready.discard(source)
                if ready:
                    for reply in self._collect(ready):
                        stream.send(reply)
                        if self._current is None:
                            on_batch()
                if arrived:
                    self._take(stream)
                    if stream.ended:
                        return
                self._check_limit()
        except ModelLostError as error:
            for reply in self._lost(str(error)):
                stream.send(reply)
            raise

    def _take(self, stream: BlockingStream) -> None:
        for message in stream.take():
            for reply in self._begin(message):
                stream.send(reply)

    def _poll(self) -> select.poll:
        poll = select.poll()
        for descriptor in self._model.file_descriptors():
            poll.register(descriptor, select.POLLIN)
        return poll

    # ---- in

    def _forget(self) -> None:
        """Nobody waits any more for what came over another stream."""
        running, self._running = self._running, {}
        self._current = self._until = None
        for number, batch in running.items():
            for member in batch.open:
                self._model.control_request(number, member, pb.MemberControl.CANCEL)

    def _begin(self, frame: bytes) -> Iterator[bytes]:
        """Hand a batch to the model; what is wrong with members is answered at once."""
        started_ns = perf_counter_ns()
        batch = pb.Batch.FromString(frame)
        members = batch.members
        self._heed(batch.controls)
        if not members:
            return
        places: list[int] = []
        requests = []
        read = self._requests.read
        count = len(members)
        running = _Running(batch.id, started_ns, 0, [None] * count, places, set())
        # Iterating over a repeated field costs more than indexing it.
        for place in range(count):
            room = self.rooms.take()
            try:
                requests.append(read(members[place], room))
                places.append(place)
            except NereidError as error:
                running.responses[place] = (failure(error_status_of(error)),)
                self.rooms.free(room)
        running.open.update(range(len(places)))
        if batch.traced and self._tracer is not None:
            running.contexts = sampled(members)
        if len(places) < count and (self._model.decoupled or not places):
            yield self._defects(running)
        if not places:
            return
        self._numbers += 1
        number = self._numbers
        self._running[number] = running
        self._current = number
        limit_s = self._model.execution_timeout_s
        self._until = None if limit_s is None else time.monotonic() + limit_s
        self._note_classes(running, requests)
        if self.rooms.expected_bytes:
            running.rooms = {
                member: request.output_buffer
                for member, request in enumerate(requests)
                if request.output_buffer is not None
            }
        try:
            self._model.begin_batch(number, requests)
        except NereidError as error:
            yield self._unbegun(number, error)
        running.begun_ns = perf_counter_ns()

    def _unbegun(self, number: int, error: NereidError) -> bytes:
        """Answer for a batch that the model cannot be given."""
        running = self._running.pop(number)
        self._current = self._until = None
        self._free_rooms(running)
        for place in running.places:
            running.responses[place] = (failure(error_status_of(error)),)
        running.places.clear()
        return self._defects(running)

    def _heed(self, controls: Iterable[pb.MemberControl]) -> None:
        for control in controls:
            for number, running in self._running.items():
                if running.id == control.batch and control.member in running.places:
                    member = running.places.index(control.member)
                    self._model.control_request(number, member, control.kind)

    def _note_classes(self, running: _Running, requests: list[Request]) -> None:
        """Outputs that are wanted as classes are seen before they are sent: they get no room."""
        for member, request in enumerate(requests):
            if request.spec.classes:
                running.classes[member] = request.spec.classes
                if request.output_buffer is not None:
                    self.rooms.free(request.output_buffer)
                    requests[member] = request._replace(output_buffer=None)

    # ---- out

    def _collect(self, ready: Collection[int]) -> Iterator[bytes]:
        for collected in self._model.collect_updates(ready):
            running = self._running.get(collected.batch)
            if running is not None:
                yield from self._collected(running, collected)

    def _collected(self, running: _Running, collected: BatchUpdate) -> Iterator[bytes]:
        arrived_ns = perf_counter_ns()
        if running.classes:
            collected = self._classes.told(collected, running.classes)
        decoupled = self._model.decoupled
        accepted = self._accepted(running, collected.responses)
        if not decoupled and not running.late:
            self._keep(running, accepted)
        free = collected.ready_for_next and self._current == collected.batch
        if free:
            self._current = self._until = None
        if decoupled:
            busy = self._current == collected.batch
            yield self._partial(running, accepted, arrived_ns, busy=busy)
        elif running.late:
            yield self._late(running, accepted, arrived_ns)
        elif not running.open:
            # Not all of them need have come from execute()'s return.
            self._current = self._until = None
            yield self._executed(running, arrived_ns)
        elif free:
            running.late = True
            yield self._so_far(running, arrived_ns)
        if not running.open and self._current != collected.batch:
            del self._running[collected.batch]
            self._tell(running, arrived_ns)

    def _accepted(self, running: _Running, responses: Sequence[Response]) -> list[Response]:
        """Those to requests that await one."""
        accepted = []
        for response in responses:
            if response.member not in running.open:
                _log.error("%s answered a request that it does not have", self._name)
                continue
            if not response.more:
                running.open.discard(response.member)
            accepted.append(response)
        return accepted

    def _keep(self, running: _Running, responses: Sequence[Response]) -> None:
        """Until all of the batch is answered."""
        places, encoded = running.places, running.responses
        for response in responses:
            member = response.member
            room = running.rooms.pop(member, None) if running.rooms else None
            encoded[places[member]] = self._responses.write(response, room)

    def _executed(self, running: _Running, arrived_ns: int = 0) -> bytes:
        """The one message that answers a whole batch."""
        times = self._times(running, arrived_ns or perf_counter_ns())
        pieces = [*chain.from_iterable(filter(None, running.responses)), times.SerializeToString()]
        return b"".join(pieces)

    def _defects(self, running: _Running) -> bytes:
        """Tells of members that the model does not get."""
        if not self._model.decoupled:
            return self._executed(running)
        return self._so_far(running, perf_counter_ns(), busy=bool(running.places))

    def _so_far(self, running: _Running, arrived_ns: int, *, busy: bool = False) -> bytes:
        """Those answers to a batch that there are."""
        executed = self._times(running, arrived_ns)
        executed.partial, executed.busy = True, busy
        for place, told in enumerate(running.responses):
            if told is not None:
                put(executed, place, told)
        return executed.SerializeToString()

    def _late(self, running: _Running, responses: Sequence[Response], arrived_ns: int) -> bytes:
        """Answers of a batch that was executed before they came."""
        executed = self._times(running, arrived_ns)
        executed.partial = True
        for response in responses:
            wire_response = executed.responses.add(id=running.places[response.member])
            self.rooms.fill(wire_response, response, running.rooms.pop(response.member, None))
        return executed.SerializeToString()

    def _partial(
        self, running: _Running, responses: Sequence[Response], arrived_ns: int, *, busy: bool
    ) -> bytes:
        executed = self._times(running, arrived_ns)
        executed.busy = busy
        # A batch that failed as a whole before it had any answer is told as such.
        executed.partial = busy or running.told or not _is_failure(running, responses)
        running.told = True
        for response in responses:
            place = running.places[response.member]
            wire_response = executed.responses.add(id=place, more=response.more)
            self.rooms.fill(wire_response, response, None)
        return executed.SerializeToString()

    def _times(self, running: _Running, arrived_ns: int) -> pb.Executed:
        begun_ns = running.begun_ns or arrived_ns
        return pb.Executed(
            id=running.id,
            compute_input_ns=begun_ns - running.started_ns,
            compute_infer_ns=arrived_ns - begun_ns,
            compute_output_ns=perf_counter_ns() - arrived_ns,
        )

    def _tell(self, running: _Running, arrived_ns: int) -> None:
        """Record the spans of a batch that was traced."""
        if self._tracer is not None and running.contexts:
            begun_ns = running.begun_ns or arrived_ns
            times = (running.started_ns, begun_ns, arrived_ns, perf_counter_ns())
            record(self._tracer, self._name, Run(running.contexts, *times, running.failed))

    # ---- the model's end

    def _free_rooms(self, running: _Running) -> None:
        """Nobody will write there any more."""
        for room in running.rooms.values():
            self.rooms.free(room)

    def _wait_ms(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - time.monotonic()) * 1000 + 1

    def _is_overdue(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def _check_limit(self) -> None:
        if self._is_overdue():
            self._model.terminate()
            raise ModelLostError(
                f"the batch was not executed within {self._model.execution_timeout_s:g} s"
            )

    def _lost(self, why: str) -> Iterator[bytes]:
        """Answer for a model that is gone, but what it never saw."""
        running, self._running = self._running, {}
        overdue = self._is_overdue()
        self._current = self._until = None
        _log.error("instance %s lost its model: %s", self._name, why)
        text = f"Stub process '{self._name}' is not healthy."
        if overdue:
            text = f"Failed to process the request(s) for model '{self._name}', message: {why}"
        error_status = ErrorStatus(Internal.code, text, accepted=True)
        for number, batch in running.items():
            self._free_rooms(batch)
            if not self._model.may_have_begun(number):
                continue
            batch.failed = error_status.message
            if self._model.decoupled or batch.late:
                executed = self._times(batch, perf_counter_ns())
                executed.partial = True
                for member in sorted(batch.open):
                    write_error(error_status, executed.responses.add(id=batch.places[member]).error)
                yield executed.SerializeToString()
            else:
                batch.responses = [each or (failure(error_status),) for each in batch.responses]
                yield self._executed(batch)
            self._tell(batch, perf_counter_ns())


def _is_failure(running: _Running, responses: Sequence[Response]) -> bool:
    if [response.member for response in responses] != [*range(len(running.responses))]:
        return False
    return all(response.error_status is not None and not response.more for response in responses)
