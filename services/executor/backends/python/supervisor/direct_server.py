"""A worker's own service of its instance's stream: batches from the scheduler, answers to it.

Runs in a worker, in the thread that runs the model, with nothing between the two; what else there
is to say goes through the executor (see supervision). Threads of the model's own that answer later
write to the stream themselves while execute() runs. Only for workers that run in the executor's
Python, and models that are not decoupled. Knows the worker, and not how a model is found.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from itertools import chain
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from nereid.backends import BatchUpdate
from nereid.core.errors import NereidError
from nereid.core.messages import SharedMemory, error_status_of
from nereid.core.methods import EXECUTE_PATH
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import BlockingStream, RpcError
from nereid.services.executor.backends.python.supervisor.deferred_responses import (
    Sent,
    Sink,
    UnderWay,
    partial,
)
from nereid.services.executor.backends.python.supervisor.request_metadata import (
    form_of,
    meta_of,
    tensors_of,
)
from nereid.services.executor.backends.python.supervisor.response_heads import Heads
from nereid.services.executor.backends.python.worker_site.nereid_worker import memory, wire
from nereid.services.executor.backends.python.worker_site.nereid_worker.channel import is_forked
from nereid.services.executor.batch.classification import Classes
from nereid.services.executor.batch.output_buffers import Rooms
from nereid.services.executor.batch.requests import Requests
from nereid.services.executor.batch.response_writer import ResponseWriter
from nereid.services.executor.batch.responses import MAX_EXECUTED_BYTES, failure
from nereid.services.executor.tracing import sampled
from nereid.shm.segments import SHM_THRESHOLD_BYTES, aligned

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.backends import RequestSpec
    from nereid.services.executor.backends.python.supervisor.deferred_responses import Told
    from nereid.services.executor.backends.python.worker_site.nereid_worker.requests import Form
    from nereid.services.executor.backends.python.worker_site.nereid_worker.serving import Serving
    from nereid.services.executor.batch.arrays import Piece

    # By member.
    Responses = list[Sequence[Piece] | None] | dict[int, Sequence[Piece]]

_DIAL_TIMEOUT_S: Final = 10.0
_MOST_FORMS: Final = 1024


class DirectServer:
    """Serves one stream; wake() and rooms are another thread's, all else the main thread's, but
    where a sender's or an asking thread comes in.
    """

    def __init__(self, serving: Serving, about: dict[str, Any], stopped: threading.Event) -> None:
        """about: as supervision tells it. stopped: set before wake() is called."""
        config = model_config_pb2.ModelConfig.FromString(bytes.fromhex(about["config"]))
        self._serving = serving
        self._about = about
        self._stopped = stopped
        self._lends: bool = about["lends"]
        self._traces: bool = about["traces"]
        # What the executor answers to ASK_ROOM.
        self.rooms: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # One asks at a time, and nobody once the stream has ended.
        self._asking_room = threading.RLock()
        self._over = False
        self._requests = Requests(tuple(output.name for output in config.output))
        self._heads = Heads(config.name, about["version"])
        self._classes = Classes(config, Path(about["model_path"]))
        self._writer = ResponseWriter(Rooms(foreseen=False))
        self._forms: dict[RequestSpec, Form] = {}
        self._stream: BlockingStream | None = None
        self._executing = False
        # The batch under way, and what was read meanwhile and is not about it.
        self._current: UnderWay | None = None
        self._early: deque[bytes] = deque()
        # Those that were executed and not answered as a whole, and what senders say of them.
        self._late: dict[int, UnderWay] = {}
        self._sent = Sent(self._deliver)

    def wake(self) -> None:
        """Have serve() return soon: at once, or after what it has is answered."""
        # A batch that arrives in this very moment is lost with the stream; the scheduler gives it
        # to another instance.
        if self._stream is not None and not self._executing and not self._late:
            self._stream.close()
        self._sent.ring()

    def serve(self) -> list[Any] | None:
        """Until the stream ends; None: in good order, else a status and a text."""
        try:
            self._stream = BlockingStream(
                self._about["address"],
                EXECUTE_PATH,
                metadata=[(key, value) for key, value in self._about["metadata"]],
                timeout_s=_DIAL_TIMEOUT_S,
                # The executor vouches for this process; nobody asks it for signs of life.
                background_keepalive=False,
            )
            self._serve(self._stream)
        except RpcError as error:
            return None if self._stopped.is_set() else [int(error.status), error.message]
        finally:
            if self._stream is not None:
                self._stream.close()
            with self._asking_room:
                self._over = True
            self._sent.close()
        return None

    def _serve(self, stream: BlockingStream) -> None:
        while self._late or not self._stopped.is_set():
            frame = self._next(stream)
            if frame is None:
                return
            self._executing = True
            self._execute(frame, stream)
            self._executing = False

    def _next(self, stream: BlockingStream) -> bytes | None:
        """The next message, empty: there is none to wait for; None: the stream has ended."""
        if self._late and not self._early:
            self._serve_late(stream)
            if stream.ended:
                return None
            if self._stopped.is_set() and not self._early:
                return b""
        return self._early.popleft() if self._early else stream.receive()

    def _serve_late(self, stream: BlockingStream) -> None:
        """Send answers to what was executed before, until a batch comes or there are no more."""
        while self._late and not self._early and not stream.ended:
            self._sent.wait(stream)
            self._sent.deliver()
            self._early += stream.take()

    def _execute(self, frame: bytes, stream: BlockingStream) -> None:
        started_ns = perf_counter_ns()
        batch = pb.Batch.FromString(frame)
        number, members, serving = batch.id, batch.members, self._serving
        if not members:
            self._heed(batch.controls)
            return
        execution = serving.execution(number, Sink(number, self._take), self._look)
        under_way = UnderWay(execution, [None] * len(members))
        self._current = under_way
        latest_us = self._admit(members, under_way)
        if latest_us:
            under_way.until_ns = time.monotonic_ns() + latest_us * 1000
        serving.note(number)
        begun_ns = perf_counter_ns()
        self._sent.lend_pen()
        replies: Sequence[wire.Reply] = serving.executed(execution)
        self._sent.want_pen()
        ran_ns = perf_counter_ns()
        held = bool(execution.held)
        execution.settle(replies)
        execution.let_go()
        wire_responses = under_way.responses
        self._write(replies, under_way, wire_responses)
        if held:
            self._sent.deliver()
        ended_ns = perf_counter_ns()
        executed = pb.Executed(
            id=number,
            compute_input_ns=begun_ns - started_ns,
            compute_infer_ns=ran_ns - begun_ns,
            compute_output_ns=ended_ns - ran_ns,
        )
        if held and None in wire_responses:
            self._late[number] = under_way
            message = partial(executed, under_way.take())
        else:
            told = chain.from_iterable(wire_responses)  # type: ignore[arg-type]
            message = b"".join([*told, executed.SerializeToString()])
        if execution.inputs is not None:
            # Whose they are uses that memory for something else from now on.
            execution.inputs.keep()
        stream.send(message)
        self._current = None
        if batch.traced and self._traces:
            contexts = [context.hex() for context in sampled(members)]
            # To when it was about to be sent, or it would end after what it is a part of.
            times = [started_ns, begun_ns, ran_ns, ended_ns]
            serving.tell(wire.TRACED, [contexts, times])

    def _take(self, number: int, replies: Sequence[wire.Reply]) -> None:
        """Make answers of what a sender sends, in its thread, and see that they go out."""
        # In this order: a batch is first the one and then among the others.
        under_way = self._current
        if under_way is None or under_way.execution.number != number:
            under_way = self._late.get(number)
        # Otherwise it is answered already.
        if under_way is not None:
            told: dict[int, Sequence[Piece]] = {}
            self._write(replies, under_way, told)
            self._sent.put(number, told)

    def _deliver(self, number: int, told: Told) -> None:
        """Send late answers, or put them to the others; for who has the pen."""
        current = self._current
        if current is not None and current.execution.number == number:
            for member, pieces in told.items():
                current.responses[member] = pieces
            return
        under_way, stream = self._late.get(number), self._stream
        if under_way is None or stream is None:
            return
        for member, pieces in told.items():
            if under_way.responses[member] is None:
                under_way.responses[member] = pieces
        # Who serves the stream hears of its end by reading.
        with contextlib.suppress(RpcError):
            stream.send(partial(pb.Executed(id=number), under_way.take()))
        if not under_way.open:
            del self._late[number]

    def asker(self, batch: int | None) -> dict[str, Any]:
        """For whose sake a thread asks other models. batch: what it executes, if it is known to;
        None: it is the main one.

        Other threads may ask for any request that is open. Which one is not guessed: a request that
        is taken for another's would be refused for rings in which it has no part.
        """
        current, late = self._current, list(self._late.values())
        sure = not late or batch is None
        if current is not None:
            sure = sure or batch == current.execution.number
            late = [current] if sure else [current, *late]
        untils = [each.until_ns for each in late]
        until_ns = max(untils) if untils and all(untils) else 0
        return {"until_ns": until_ns, "sure": sure}

    def _look(self) -> None:
        """See what has become of requests; for a model that asks, from any of its threads."""
        # Who has the pen sees to the stream as well.
        if self._stream is None or is_forked() or not self._sent.take_pen():
            return
        try:
            for message in self._stream.read_from_any_thread():
                batch = pb.Batch.FromString(message)
                self._heed(batch.controls)
                if batch.members:
                    self._early.append(message)
        finally:
            self._sent.lend_pen()

    def _heed(self, controls: Iterable[pb.MemberControl]) -> None:
        for control in controls:
            under_way = self._late.get(control.batch) or self._current
            if under_way is not None and under_way.execution.number == control.batch:
                under_way.execution.control(control.member, control.kind)

    def _admit(self, members: Sequence[pb.BatchMember], under_way: UnderWay) -> int:
        """Make members requests; what is left of the latest deadline, 0: one has none.

        Those with a defect are answered, and what is wanted as classes is noted.
        """
        execution = under_way.execution
        latest_us, unlimited = 0, False
        # Iterating over a repeated field costs more than indexing it.
        for place in range(len(members)):
            try:
                request = self._requests.read(members[place], None)
            except NereidError as error:
                execution.wanted.append(frozenset())
                under_way.responses[place] = (failure(error_status_of(error)),)
                continue
            form = request.spec
            known = self._forms.get(form) or self._form(form)
            if form.classes:
                under_way.classes[place] = form.classes
            meta = meta_of(request)
            self._serving.admit(execution, place, known, tensors_of(request), meta)
            remaining_us = request.remaining_us
            if remaining_us > latest_us:
                latest_us = remaining_us
            elif not remaining_us:
                unlimited = True
        return 0 if unlimited else latest_us

    def _form(self, form: RequestSpec) -> Form:
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        known = self._forms[form] = self._serving.form(form_of(form))
        return known

    # ---- answers

    def _write(
        self, replies: Sequence[wire.Reply], under_way: UnderWay, wire_responses: Responses
    ) -> None:
        """Make replies answers."""
        try:
            self._write_all(replies, under_way, wire_responses)
        except wire.WireError as error:
            members = {reply[0] for reply in replies}
            failed = self._serving.failures(under_way.execution, str(error), again=True)
            failed = [reply for reply in failed if reply.member in members]
            self._write_all(failed, under_way, wire_responses)

    def _write_all(
        self, replies: Sequence[wire.Reply], under_way: UnderWay, wire_responses: Responses
    ) -> None:
        """Raises WireError if they are too large together."""
        classes = under_way.classes
        total_bytes = 0
        for member, flags, meta, raws in replies:
            size_bytes = sum(map(wire.size_of, raws))
            room = None
            if size_bytes >= SHM_THRESHOLD_BYTES and self._lends and member not in classes:
                room, tensors = self._lent(raws)
            else:
                tensors = [raw if type(raw) is bytes else _flat(raw) for raw in raws]
            if room is None:
                total_bytes += size_bytes
                if total_bytes > MAX_EXECUTED_BYTES:
                    raise wire.WireError("the tensors are too large to be sent")
            response = self._heads.response(wire.Reply(member, flags, meta, tensors), room)
            if member in classes:
                collected = BatchUpdate(0, [response], ready_for_next=True)
                (response,) = self._classes.told(collected, classes).responses
            wire_responses[member] = self._writer.write(response, room)

    def _lent(self, raws: Sequence[Any]) -> tuple[SharedMemory | None, Sequence[Any]]:
        """Put an answer's outputs in a segment of the executor's, which sees to the rest."""
        given = self._room(sum(aligned(wire.size_of(raw)) for raw in raws))
        if given is not None:
            room = SharedMemory(*given)
            placed = memory.put(raws, wire.Range(*room))
            if type(placed[0]) is wire.Range:
                return room, placed
        return None, [_flat(raw) for raw in raws]

    def _room(self, size_bytes: int) -> Any:
        # The collector may have the model answer in the thread that brings the rooms.
        if self._serving.is_reading():
            return None
        with self._asking_room:
            if self._over:
                return None
            self._serving.tell(wire.ASK_ROOM, size_bytes)
            return self.rooms.get()


def _flat(raw: Any) -> bytes | memoryview:
    """An output's bytes, one by one; large ones in place."""
    return raw.tobytes() if raw.nbytes < SHM_THRESHOLD_BYTES else wire.as_bytes(raw)
