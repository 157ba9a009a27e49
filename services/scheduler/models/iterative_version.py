"""The version of a model with iterative sequences, decoupled or not: an instance may want a request
again instead of giving its last response.

Each iteration counts as an inference, as on Triton. A request that has had a response does not
begin anew when its instance is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.messages import InferResponse
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.batching.sequences.controls import is_null
from nereid.services.scheduler.batching.sequences.iterative import IterativeBatcher
from nereid.services.scheduler.models.decoupled_version import (
    DecoupledVersion,
    unknown_execution,
)

if TYPE_CHECKING:
    from nereid.model_config import ModelConfig
    from nereid.services.scheduler.executors.instance import Instance
    from nereid.services.scheduler.models.decoupled_version import Member, OpenBatch
    from nereid.services.scheduler.models.model_version import VersionContext
    from nereid.services.scheduler.observability.execution import Execution
    from nereid.services.scheduler.requests.entry import Batch, Entry

# In place of a response: the instance wants the request again.
_RESCHEDULED: Final = InferResponse(0)


class IterativeVersion(DecoupledVersion):
    """A DecoupledVersion whose instances may have requests scheduled again."""

    def __init__(self, config: ModelConfig, number: int, context: VersionContext) -> None:
        super().__init__(config, number, context)
        assert isinstance(self._batcher, IterativeBatcher), "sequences that are not iterative"
        self._iterations = self._batcher
        # Of rescheduled entries: how many responses they have had.
        self._sent: dict[Entry, int] = {}
        # Entries whose clients cannot keep up.
        self._paused: set[Entry] = set()

    # ---- requests

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        super().set_flow(entry, paused=paused)
        if paused and entry in self._open:
            self._paused.add(entry)
        else:
            self._paused.discard(entry)

    def _close(self, entry: Entry, response: InferResponse | None) -> None:
        self._sent.pop(entry, None)
        self._paused.discard(entry)
        super()._close(entry, response)

    # ---- instances

    def _start(self, batch: Batch, now_ns: int) -> Instance:
        instance = super()._start(batch, now_ns)
        for entry in batch.entries:
            member = self._members.get(entry)
            if member is not None:
                member.responses = self._sent.pop(entry, 0)
                if entry in self._paused:
                    member.send_control(pb.MemberControl.PAUSE)
        return instance

    def _end_execution(self, batch: OpenBatch, frame: pb.Executed, now_ns: int) -> None:
        # First, so that its next batch can have them.
        execution = batch.running.execution(frame, now_ns)
        for position, message in enumerate(frame.responses):
            if message.rescheduled:
                member = batch.members[message.id if frame.partial else position]
                self._reschedule(member, execution, now_ns)
        super()._end_execution(batch, frame, now_ns)

    # ---- responses

    def _read_response(self, message: pb.InferResponse) -> InferResponse:
        return _RESCHEDULED if message.rescheduled else super()._read_response(message)

    def _on_member_response(self, member: Member, response: InferResponse, now_ns: int) -> None:
        if response is not _RESCHEDULED:
            super()._on_member_response(member, response, now_ns)
            return
        batch = member.batch
        execution = batch.execution or unknown_execution(batch.running, now_ns)
        self._reschedule(member, execution, now_ns)
        member.ended_ns = now_ns
        batch.open -= 1
        batch.instance.open_members -= 1

    def _record_response(self, member: Member, response: InferResponse, now_ns: int) -> None:
        if self.config.decoupled:
            super()._record_response(member, response, now_ns)

    def _record_end(self, member: Member, execution: Execution) -> None:
        if not member.rescheduled:
            super()._record_end(member, execution)

    def _reschedule(self, member: Member, execution: Execution, now_ns: int) -> None:
        """Queue its entry again, unless that is done or nobody waits for it."""
        entry = member.entry
        if member.rescheduled:
            return
        member.rescheduled = True
        if not is_null(entry):
            self.statistics.record_end(entry, execution, now_ns)
        if self._members.get(entry) is not member:
            return
        del self._members[entry]
        if member.responses:
            self._sent[entry] = member.responses
        restarts = 0 if entry.member is None else entry.member.restarts
        bound = (
            member.responses > 0
            or self.config.at_most_once
            # It may be the reason why its instances were lost.
            or restarts >= self._limits.max_retries
        )
        self._iterations.reschedule(entry, now_ns, bound=bound)
        self.wake()

    def _announce_responses(self, entry: Entry) -> None:
        if self.config.decoupled:
            super()._announce_responses(entry)
