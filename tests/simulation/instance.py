"""A simulated instance: what nereid_executor.instances.instance does, by timers.

It stands between the executor's real sessions, which load, adopt and stop it, and a stream to the
scheduler. The product's own machines decide which batches it begins, which scheduler it serves,
which states of sequences it has, and which runs can be recalled.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nereid.core.errors import Internal, ProtocolError, Unavailable
from nereid.core.methods import (
    CRASH_REPORTS_KEY,
    EXECUTE_PATH,
    EXECUTOR_KEY,
    INSTANCE_KEY,
    STATES_KEY,
    WITHDRAWALS_KEY,
)
from nereid.core.wire.messages import ErrorStatus, error_status_of
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.lifecycle.received_batches import ReceivedBatch, ReceivedBatches
from nereid_executor.core.model_files import read_model_files
from nereid_executor.instances.instance_state import TRANSITIONS, InstanceState
from nereid_executor.instances.instance_streams import REFUSALS
from nereid_executor.instances.tenure import Tenures
from tests.simulation.models import number_of
from tests.simulation.repository import version_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.backends import InstanceSpec
    from nereid_executor.core.model_files import ModelFiles
    from nereid_executor.instances.instance_context import InstanceContext
    from nereid_executor.instances.tenure import Tenure
    from tests.simulation.channel import Stream
    from tests.simulation.models import SimulatedModel
    from tests.simulation.processes import Process
    from tests.simulation.surroundings import Surroundings

_LOAD_S: Final = (0.005, 0.1)
# One load in so many takes longer.
_SLOW_LOAD: Final = 10
_SLOW_LOAD_S: Final = (0.2, 2.0)
_EXECUTION_S: Final = (0.002, 0.005)
# One execution in so many takes longer.
_SLOW: Final = 15
# After a long one its thread may be held up: the process gets no CPU.
_HELD_UP_S: Final = 0.1
_SLOW_S: Final = (0.02, 0.15)
# What an instance waits for after its stream broke, at first; it doubles.
_FIRST_PAUSE_S: Final = 0.05
_RESTART_S: Final = (0.005, 0.2)
# Until a thread that waits runs.
_WAKE_S: Final = (0.00002, 0.002)


class SimulatedInstance:
    """An Instance, for SessionInstances."""

    def __init__(
        self,
        where: Surroundings,
        process: Process,
        model: SimulatedModel,
        spec: InstanceSpec,
        context: InstanceContext,
        tenure: Tenure,
        *,
        on_serve: Callable[[SimulatedInstance], None],
    ) -> None:
        """on_serve: called when it opens a stream."""
        self._where = where
        self._process = process
        self.model = model
        self.spec = replace(spec, number=tenure.number)
        self._context = context
        self._on_serve = on_serve
        self.tenures = Tenures(tenure)
        # The one that it serves, or has served.
        self.serving = tenure
        self.files: ModelFiles | None = None
        self.loaded = False
        self.memory: dict[str, int] = {}
        self.batches = 0
        self.has_states = model.has_states
        self.state = InstanceState.LOADING
        self._version = 0
        self.name = f"{spec.name}@{process.name}"
        self._received: ReceivedBatches[ReceivedBatch] = ReceivedBatches()
        self._states = model.make_states(spec) if model.has_states else None
        self._last_begun = 0
        # How many streams it has opened.
        self._streams = 0
        self._pause_s = _FIRST_PAUSE_S
        # The requests that came over this stream and began.
        self._seen: list[int] = []
        self._given_back: set[int] = set()
        self.stream: Stream | None = None
        self._unread: deque[pb.Batch] = deque()
        self._executing: pb.Batch | None = None
        self._paused_until_s = 0.0
        # Requests by batch and place: with responses to come, and those that were cancelled.
        self._deferred: set[tuple[int, int]] = set()
        self._cancelled: set[tuple[int, int]] = set()
        # Timers of earlier lives of its worker do nothing.
        self._life = 0

    # ---- as Instance

    @property
    def version(self) -> tuple[str, int]:
        return self.spec.config.name, self.spec.version

    def start(self) -> None:
        slow = self._where.random.randrange(_SLOW_LOAD) == 0
        self.files = read_model_files(self.spec.version_path)
        self._version = version_at(str(self.spec.version_path)) or 0
        self._where.later(_SLOW_LOAD_S if slow else _LOAD_S, self._on_loaded)

    def adopt(self, tenure: Tenure) -> bool:
        adopted = self.tenures.add(tenure)
        self._where.later(_WAKE_S, self._look)
        return adopted

    def stop(self, *, abandon: bool = False, keep: bool = False) -> None:
        tenure = self.tenures.current
        if abandon and not tenure.abandoned.is_set():
            tenure.abandoned.set()
            if self.model.serves_itself:
                self._context.recent_runs.begin(self, self._running())
        if not keep:
            self.tenures.set_last()
        tenure.stopping.set()
        stream = self.stream
        if stream is not None and (abandon or not self._is_busy):
            # Its own end is seen by its thread.
            self._close_stream()
        self._where.later(_WAKE_S, self._look)
        if abandon and self.model.serves_itself and self._executing is not None:
            limit_s = self._context.times.abandoned_s
            self._where.loop.call_later(limit_s, self._on_overdue, self._life)

    def withdraw(self, batch: int) -> bool:
        """Whether it gives a batch back."""
        if WITHDRAWALS_KEY not in self.model.keys or not self._received.withdraw(batch):
            return False
        self._given_back.add(batch)
        self._where.history.add("given back", f"batch {batch} by {self.name}", self._members(batch))
        return True

    def query_readiness(self, on_response: Callable[[bool | None], None]) -> None:
        on_response(False)

    # ---- its life

    @property
    def _is_busy(self) -> bool:
        return self._executing is not None or bool(self._deferred)

    @property
    def ended(self) -> bool:
        """Whether its model is closed."""
        return self.state is InstanceState.STOPPED

    @property
    def serves(self) -> bool:
        """Whether it has a stream, which it was not asked to end."""
        return self.stream is not None and not self.serving.stopping.is_set()

    def _enter(self, state: InstanceState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def _on_loaded(self) -> None:
        if self.tenures.is_last:
            self._end(None)
        elif not self._version:
            self._end(error_status_of(Internal("the file cannot be loaded")))
        else:
            self._enter(InstanceState.WARMING_UP)
            self.loaded = True
            self.tenures.current.callbacks.on_loaded()
            self._begin_tenure(self.tenures.current)

    def _begin_tenure(self, tenure: Tenure) -> None:
        self.serving = tenure
        # The next scheduler knows nothing of sequences or withdrawn batches.
        self._received = self._where.bugs.next_received(self._received)
        self._states = self.model.make_states(self.spec) if self.model.has_states else None
        self._given_back.clear()
        self._last_begun = 0
        self._pause_s = _FIRST_PAUSE_S
        if tenure.stopping.is_set():
            self._end_tenure()
        else:
            self._connect(self._life)

    def _look(self) -> None:
        """Its thread runs: has it to end its tenure, or to begin one?"""
        if self.state in {InstanceState.LOADING, InstanceState.STOPPED}:
            return
        if self.state is InstanceState.KEPT:
            self._follow()
        elif self.serving.stopping.is_set() and not self._is_busy:
            self._close_stream()
            self._end_tenure()

    def _end_tenure(self) -> None:
        """Nothing executes, and there is no stream."""
        self._life += 1
        self._unread.clear()
        self._context.recent_runs.abandon(self)
        if not self.tenures.is_last:
            self._enter(InstanceState.KEPT)
            self.serving.callbacks.on_kept(self)  # type: ignore[arg-type]
        self._follow()

    def _follow(self) -> None:
        if self.tenures.is_last:
            self._end(None)
        elif self.tenures.current is not self.serving:
            self._begin_tenure(self.tenures.current)

    def _end(self, error: ErrorStatus | None) -> None:
        self._close_stream()
        self._life += 1
        self.state = InstanceState.STOPPED
        self._context.recent_runs.abandon(self)
        self.tenures.close()
        self.tenures.current.callbacks.on_ended(self, error)  # type: ignore[arg-type]

    def _on_overdue(self, life: int) -> None:
        """Its worker executes what nobody waits for, and is started anew."""
        if life == self._life and self._executing is not None:
            self.crash()

    # ---- its stream

    def _connect(self, life: int) -> None:
        if life != self._life or self.stream is not None:
            return
        if self.serving.stopping.is_set():
            self._end_tenure()
            return
        self._enter(InstanceState.CONNECTING)
        self._streams += 1
        metadata = {INSTANCE_KEY: str(self.serving.number), EXECUTOR_KEY: self._context.process}
        metadata |= dict.fromkeys(self.model.keys, "1")
        if self.model.reports_crashes:
            metadata[CRASH_REPORTS_KEY] = str(self._streams)
        if self.has_states:
            metadata[STATES_KEY] = "1"
        stream = self._where.open_stream(
            self._process,
            self.serving.endpoint.address,
            EXECUTE_PATH,
            metadata.items(),
            self._on_message,
            lambda: self._on_close(stream),
        )
        self.stream = stream
        self._cancelled.clear()
        self._seen.clear()
        self._cancelled.clear()
        if WITHDRAWALS_KEY not in self.model.keys:
            # Those that run requests one by one begin anew with each stream.
            self._received = ReceivedBatches()
        self._enter(InstanceState.SERVING)
        self._where.history.add("stream opened", self.name)
        self._on_serve(self)

    def _close_stream(self) -> None:
        stream, self.stream = self.stream, None
        self._deferred.clear()
        if stream is not None:
            stream.close(lossy=False)

    def _on_close(self, stream: Stream) -> None:
        if self.stream is not stream:
            return
        self._where.history.add("stream lost", self.name)
        self.stream = None
        self._unread.clear()
        self._deferred.clear()
        error = stream.error
        if error is None:
            return  # a command follows
        if error.status in REFUSALS:
            refused = Unavailable(f"the scheduler refused the instance: {error.message}")
            self._end(error_status_of(refused))
        elif self._executing is None:
            self._reconnect()

    def _reconnect(self) -> None:
        if self.serving.stopping.is_set():
            self._where.later(_WAKE_S, self._look)
            return
        self._life += 1
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._context.times.longest_dial_pause_s)
        self._where.later((0.5 * pause_s, pause_s), self._connect, self._life)

    def _on_message(self, message: bytes) -> None:
        batch = pb.Batch.FromString(message)
        for control in batch.controls:
            if control.kind == pb.MemberControl.CANCEL:
                self._cancelled.add((control.batch, control.member))
        if batch.members or batch.exported_slots:
            self._unread.append(batch)
            self._read()

    def _members(self, number: int) -> list[int]:
        for batch in self._unread:
            if batch.id == number:
                return _numbers_of(batch)
        return []

    # ---- faults

    def pause(self, duration_s: float) -> None:
        """Its thread reads no batch for a while."""
        self._paused_until_s = self._where.loop.time() + duration_s
        self._where.later((duration_s, duration_s), self._read)

    def crash(self) -> None:
        """Its worker crashes, and another one is started."""
        if self.state is not InstanceState.SERVING or not self.model.reports_crashes:
            return
        error = ErrorStatus(13, "the worker crashed", accepted=True)
        self._where.history.add("crashed", self.name, self._seen)
        self.serving.callbacks.on_model_lost(self._streams, self._last_begun, error)
        self._where.runs.crashed.update(self._seen)
        self._life += 1
        self._executing = None
        self._unread.clear()
        self._close_stream()
        self._where.later(_RESTART_S, self._on_restarted, self._life)

    def _on_restarted(self, life: int) -> None:
        if life == self._life:
            self._connect(life)

    # ---- batches

    def _running(self) -> Sequence[int]:
        if self._executing is None:
            return ()
        return [member.id for member in self._executing.members]

    def _read(self) -> None:
        while self._executing is None and self._unread:
            if self.stream is None or self._where.loop.time() < self._paused_until_s:
                return
            if self.serving.stopping.is_set():
                return
            batch = self._unread.popleft()
            ids = _numbers_of(batch)
            try:
                begins = self._received.read(batch.id)
            except ProtocolError as error:
                self._where.history.violate(f"{self.name}: {error}", ids)
                return
            if begins:
                self._begin(batch, ids)
            else:
                self._where.history.add("skipped", f"batch {batch.id} by {self.name}", ids)

    def _begin(self, batch: pb.Batch, ids: list[int]) -> None:
        where = self._where
        where.history.add("begun", f"batch {batch.id} by {self.name}", ids)
        if batch.id in self._given_back:
            where.history.violate(f"{self.name} executes batch {batch.id}, given back", ids)
        assert self.stream is not None, "a batch without a stream"
        where.runs.begin(self.model, ids, self.stream)
        self._executing, self._last_begun = batch, batch.id
        self._seen += ids
        if not self.model.serves_itself:
            self._context.recent_runs.begin(self, self._running())
        span = _SLOW_S if where.random.randrange(_SLOW) == 0 else _EXECUTION_S
        duration_s = where.random.uniform(*span)
        if self.model.decoupled:
            self._schedule_responses(batch, duration_s)
        where.loop.call_later(duration_s, self._end_execution, batch, duration_s, self._life)

    def _end_execution(self, batch: pb.Batch, duration_s: float, life: int) -> None:
        if life != self._life or self._executing is not batch:
            return
        self._executing = None
        self.batches += 1
        reply = pb.Executed(id=batch.id, compute_infer_ns=int(duration_s * 1e9))
        if self.model.decoupled:
            reply.partial = True
            self._write(batch, reply.SerializeToString())
            self._context.recent_runs.complete(self, (), None)
        else:
            self._execute(batch, reply)
            if duration_s > _SLOW_S[0] and self._where.random.random() < 0.5:
                self.pause(self._where.random.uniform(0.0, _HELD_UP_S))
            executed = reply.SerializeToString()
            ids = [member.id for member in batch.members]
            runs = self._context.recent_runs
            # A model that serves its stream itself reports what it ran when that has ended.
            if not self.model.serves_itself:
                runs.complete(self, ids, executed)
            elif self.stream is None or self.stream.lost:
                runs.keep(ids, executed)
            for _ in range(self._where.bugs.copies()):
                self._write(batch, executed)
        if self.stream is None and not self.serving.stopping.is_set():
            # It broke meanwhile.
            self._reconnect()
        elif self.serving.stopping.is_set():
            self._look()
        else:
            self._read()

    def _execute(self, batch: pb.Batch, reply: pb.Executed) -> None:
        head, states = self.model.response_head(), self._states
        if states is not None:
            self.model.execute_sequences(batch, reply, states, self._version)
            return
        for member in batch.members:
            (payload,) = self.model.responses(member.payloads[0].inline, self._version)
            reply.responses.add(head=head).payloads.add(inline=payload)

    def _write(self, batch: pb.Batch, executed: bytes) -> None:
        if self.stream is not None:
            ids = _numbers_of(batch)
            self._where.history.add("responded", f"batch {batch.id} by {self.name}", ids)
            self.stream.write(executed)

    # ---- a decoupled model's responses

    def _schedule_responses(self, batch: pb.Batch, duration_s: float) -> None:
        """Some while it executes, and some later."""
        for place in range(len(batch.members)):
            self._deferred.add((batch.id, place))
            self._where.later((0.0, 2 * duration_s), self._respond, batch, place, 0, self._life)

    def _respond(self, batch: pb.Batch, place: int, count: int, life: int) -> None:
        if life != self._life or self.stream is None:
            return
        payloads = self.model.responses(batch.members[place].payloads[0].inline, self._version)
        reply = pb.Executed(id=batch.id, partial=True, busy=self._executing is batch)
        response = reply.responses.add(id=place)
        more = count < len(payloads) and (batch.id, place) not in self._cancelled
        if more:
            response.more = True
            response.head = self.model.response_head()
            response.payloads.add(inline=payloads[count])
            self._where.later((0.0, 0.01), self._respond, batch, place, count + 1, life)
        else:
            self._cancelled.discard((batch.id, place))
            self._deferred.discard((batch.id, place))
        self._write(batch, reply.SerializeToString())
        if not more:
            self._look()


def _numbers_of(batch: pb.Batch) -> list[int]:
    return [number_of(member.payloads[0].inline) for member in batch.members]
