"""A simulated instance: it reads batches from its stream, one after the other, and its execution is
a timer. Which batches it begins is the product's own decision (BegunBatches).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nereid.core.errors import ProtocolError
from nereid.core.methods import (
    CRASH_REPORTS_KEY,
    EXECUTE_PATH,
    EXECUTOR_KEY,
    INSTANCE_KEY,
    WITHDRAWALS_KEY,
)
from nereid.pb import nereid_pb2 as pb
from tests.simulation.models import number_of

if TYPE_CHECKING:
    from tests.simulation.models import SimulatedModel
    from tests.simulation.network import Stream
    from tests.simulation.processes import Process
    from tests.simulation.surroundings import Surroundings

_EXECUTION_S = (0.002, 0.005)
# One in so many takes longer.
_SLOW = 15
# After a long one its thread may be held up: the process gets no CPU.
_HELD_UP_S = 0.1
_SLOW_S = (0.02, 0.15)
_RECONNECT_S = (0.001, 0.05)
_RESTART_S = (0.005, 0.2)


class SimulatedInstance:
    """One that is loaded; its stream is opened, and again when it breaks."""

    def __init__(  # noqa: PLR0913, PLR0917 (what a load command and its executor say)
        self,
        where: Surroundings,
        model: SimulatedModel,
        number: int,
        version: int,
        owner: str,
        process: Process,
        key: str,
        address: str,
    ) -> None:
        self._where = where
        self.model = model
        self.number = number
        self._version = version
        self._process = process
        self._address = address
        self.name = f"{model.name}@{owner}"
        self._metadata = {INSTANCE_KEY: str(number), EXECUTOR_KEY: key}
        self._metadata |= dict.fromkeys(model.keys, "1")
        self.begun = where.bugs.begun_batches()
        self._last_begun = 0
        # How many streams it has opened.
        self._streams = 0
        # The requests that came over this stream and began.
        self._seen: list[int] = []
        self._given_back: set[int] = set()
        self.stream: Stream | None = None
        self._unread: deque[pb.Batch] = deque()
        self._executing: pb.Batch | None = None
        self._paused_until_s = 0.0
        self._cancelled: set[tuple[int, int]] = set()
        # Timers of earlier lives of its worker do nothing.
        self._life = 0
        self.ended = False
        self._connect(self._life)

    @property
    def idle(self) -> bool:
        return self._executing is None and not self._unread

    # ---- its stream

    def _connect(self, life: int) -> None:
        if self.ended or life != self._life or self.stream is not None:
            return
        self._streams += 1
        metadata = dict(self._metadata)
        if self.model.reports_crashes:
            metadata[CRASH_REPORTS_KEY] = str(self._streams)
        stream = self._where.open_stream(
            self._process,
            self._address,
            EXECUTE_PATH,
            metadata.items(),
            self._on_message,
            lambda: self._on_close(stream),
        )
        self.stream = stream
        self._seen.clear()
        if WITHDRAWALS_KEY not in self.model.keys:
            # Those that run requests one by one begin anew with each stream.
            self.begun = self._where.bugs.begun_batches()
        self._where.history.add("stream opened", self.name)

    def _on_close(self, stream: Stream) -> None:
        if self.stream is stream:
            self._where.history.add("stream lost", self.name)
            self.stream = None
            self._unread.clear()
            if self._executing is None or self.model.reports_crashes:
                self._life += 1
                self._executing = None
                self._reconnect(_RECONNECT_S)

    def _reconnect(self, after_s: tuple[float, float]) -> None:
        self._where.later(after_s, self._connect, self._life)

    def _on_message(self, message: bytes) -> None:
        batch = pb.Batch.FromString(message)
        for control in batch.controls:
            if control.kind == pb.MemberControl.CANCEL:
                self._cancelled.add((control.batch, control.member))
        if batch.members:
            self._unread.append(batch)
            self._read()

    # ---- what its executor does

    def withdraw(self, batch: int) -> bool:
        """Whether it gives a batch back."""
        if not self.begun.withdraw(batch):
            return False
        self._given_back.add(batch)
        self._where.history.add("given back", f"batch {batch} by {self.name}", self._members(batch))
        return True

    def _members(self, number: int) -> list[int]:
        for batch in self._unread:
            if batch.id == number:
                return _numbers_of(batch)
        return []

    def end(self, *, lossy: bool) -> None:
        """Its process ends."""
        self.ended = True
        self._life += 1
        if self.stream is not None:
            self.stream.close(lossy=lossy)
            self.stream = None

    # ---- faults

    def pause(self, duration_s: float) -> None:
        """Its thread reads no batch for a while."""
        self._paused_until_s = self._where.loop.time() + duration_s
        self._where.later((duration_s, duration_s), self._read)

    def crash(self) -> pb.InstanceLost:
        """Its worker crashes, and its executor starts another one."""
        error = pb.ErrorStatus(code=13, message="the worker crashed", accepted=True)
        report = pb.InstanceLost(
            instance=self.number, stream=self._streams, begun=self._last_begun, error=error
        )
        self._where.runs.crashed.update(self._seen)
        self._life += 1
        self._executing = None
        self._unread.clear()
        if self.stream is not None:
            self.stream.close(lossy=False)
            self.stream = None
        self._reconnect(_RESTART_S)
        return report

    # ---- batches

    def _read(self) -> None:
        while self._executing is None and self._unread:
            if self.ended or self._where.loop.time() < self._paused_until_s:
                return
            batch = self._unread.popleft()
            ids = _numbers_of(batch)
            try:
                begins = self.begun.begin(batch.id)
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
        span = _SLOW_S if where.random.randrange(_SLOW) == 0 else _EXECUTION_S
        duration_s = where.random.uniform(*span)
        if self.model.decoupled:
            self._schedule_responses(batch, duration_s)
        where.loop.call_later(duration_s, self._end_execution, batch, duration_s, self._life)

    def _end_execution(self, batch: pb.Batch, duration_s: float, life: int) -> None:
        if life != self._life or self.ended:
            return
        self._executing = None
        if self.stream is None:
            # It broke meanwhile, and nobody waits for the responses.
            self._life += 1
            self._reconnect(_RECONNECT_S)
            return
        reply = pb.Executed(id=batch.id, compute_infer_ns=int(duration_s * 1e9))
        if self.model.decoupled:
            reply.partial = True
            self._write(batch, reply)
        else:
            head = self.model.response_head()
            for member in batch.members:
                (payload,) = self.model.responses(member.payloads[0].inline, self._version)
                reply.responses.add(head=head).payloads.add(inline=payload)
            if duration_s > _SLOW_S[0] and self._where.random.random() < 0.5:
                self.pause(self._where.random.uniform(0.0, _HELD_UP_S))
            for _ in range(self._where.bugs.copies()):
                self._write(batch, reply)
        self._read()

    def _write(self, batch: pb.Batch, reply: pb.Executed) -> None:
        if self.stream is not None:
            ids = _numbers_of(batch)
            self._where.history.add("responded", f"batch {batch.id} by {self.name}", ids)
            self.stream.write(reply.SerializeToString())

    # ---- a decoupled model's responses

    def _schedule_responses(self, batch: pb.Batch, duration_s: float) -> None:
        """Some while it executes, and some later."""
        for place in range(len(batch.members)):
            self._where.later((0.0, 2 * duration_s), self._respond, batch, place, 0, self._life)

    def _respond(self, batch: pb.Batch, place: int, count: int, life: int) -> None:
        if life != self._life or self.ended or self.stream is None:
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
        self._write(batch, reply)


def _numbers_of(batch: pb.Batch) -> list[int]:
    return [number_of(member.payloads[0].inline) for member in batch.members]
