"""Handles responses that come one by one, not with the reply to a whole batch.

A member is open until its last response, or until a model with iterative sequences reschedules it.
An instance gets its next batch although earlier requests may still be open there. If an instance
is lost, a request runs again only if none of its responses was sent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import ProtocolError, Unavailable
from nereid.core.wire.messages import InferResponse
from nereid.observability.metrics import BACKEND
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.batching.sequences.controls import is_null
from nereid_scheduler.core.instances.remote_instance import read_each_response
from nereid_scheduler.core.requests.entry import RESPONDED
from nereid_scheduler.core.requests.execution import Execution
from nereid_scheduler.versions.tracing.request_traces import end_attempts

if TYPE_CHECKING:
    from nereid_scheduler.batching.sequences.iterative import IterativeBatcher
    from nereid_scheduler.core.instances.instance_batches import Member, SentBatch
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.versions.model_version import ModelVersion

_now_ns = time.monotonic_ns
# Stands in for the response of a rescheduled request.
_RESCHEDULED: Final = InferResponse(0)


class _Place(NamedTuple):
    instance: RemoteInstance
    sent: SentBatch
    member: Member

    def send_control(self, kind: pb.MemberControl.Kind) -> None:
        self.instance.send_control(self.sent.id, self.member.index, kind)


class MemberResponses:
    """Handle the responses of a model version that is decoupled or has iterative sequences."""

    def __init__(self, version: ModelVersion, iterations: IterativeBatcher | None) -> None:
        self._version = version
        self._decoupled = version.config.decoupled
        self._iterations = iterations
        # Entries that may still get responses.
        self._places: dict[Entry, _Place] = {}
        # Number of responses that a rescheduled entry has had.
        self._responses: dict[Entry, int] = {}
        # Entries whose clients cannot keep up; they stay paused when they are rescheduled.
        self._paused: set[Entry] = set()

    def on_sent(self, instance: RemoteInstance, sent: SentBatch) -> None:
        """Record that an instance, which was sent this batch, executes the batch's entries."""
        for member in sent.track_members(sent.started_ns):
            entry = member.entry
            if is_null(entry):
                continue
            self._places[entry] = place = _Place(instance, sent, member)
            member.responses = self._responses.pop(entry, 0)
            if entry in self._paused:
                place.send_control(pb.MemberControl.PAUSE)

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """Pause the responses of a client that cannot keep up with them, or resume them."""
        place = self._places.get(entry)
        if place is not None:
            place.send_control(pb.MemberControl.PAUSE if paused else pb.MemberControl.RESUME)
        if paused and self._iterations is not None and entry.state is not RESPONDED:
            self._paused.add(entry)
        else:
            self._paused.discard(entry)

    def end_entry(self, entry: Entry) -> None:
        """Forget an ended entry; cancel it at its instance if its last response has not come."""
        place = self._places.pop(entry, None)
        if place is not None:
            place.send_control(pb.MemberControl.CANCEL)
        self._responses.pop(entry, None)
        self._paused.discard(entry)

    def on_reply(self, instance: RemoteInstance, message: bytes) -> None:
        """Handle responses to open requests, or a report that the instance is free again."""
        now_ns = _now_ns()
        reply = instance.read_reply(message)
        sent = instance.batches.replying(reply.id)
        responses = self._read_responses(sent, reply)
        if sent.execution is None and not reply.busy:
            self._end_execution(instance, sent, reply, responses, now_ns)
        for member, response in responses:
            if response is _RESCHEDULED:
                self._reschedule(sent, member, now_ns)
                sent.end_member(member, now_ns)
            else:
                self._on_response(sent, member, response, now_ns)
        instance.batches.end_responding(sent)
        if not instance.at_work:
            instance.on_idle()

    def _read_responses(
        self, sent: SentBatch, reply: pb.Executed
    ) -> list[tuple[Member, InferResponse]]:
        """Return a reply's responses by member; raise ProtocolError if a member expects none."""
        if not reply.partial:
            sent.check_whole(len(reply.responses))
        read: list[tuple[Member, InferResponse]] = []
        ended: set[int] = set()
        failed: list[Member] = []
        freed = sent.execution is None and not reply.busy
        parsed = read_each_response(reply.responses)
        for place, (message, response) in enumerate(zip(reply.responses, parsed, strict=True)):
            member = sent.open_member(message.id if reply.partial else place)
            if member.index in ended:
                raise ProtocolError(
                    f"a response to member {member.index} of batch {sent.id} after its last one"
                )
            if message.rescheduled:
                if self._iterations is None:
                    raise ProtocolError("a request is wanted again, whose sequence cannot iterate")
                response = _RESCHEDULED  # noqa: PLW2901
            if not response.more:
                ended.add(member.index)
                if response.error is not None and freed:
                    # In this reply, an error means that the model raised an exception or its worker
                    # died.
                    failed.append(member)
            read.append((member, response))
        for member in failed:
            member.failed = True
        return read

    def _end_execution(
        self,
        instance: RemoteInstance,
        sent: SentBatch,
        reply: pb.Executed,
        responses: list[tuple[Member, InferResponse]],
        now_ns: int,
    ) -> None:
        version = self._version
        execution = sent.end_execution(reply, now_ns)
        for member, response in responses:
            if response is _RESCHEDULED:
                # Reschedule before the next batch is sent, so that it can include these entries.
                self._reschedule(sent, member, now_ns)
        version.end_first(instance, now_ns)
        version.statistics.record_execution(sent.batch, execution)
        if sent.batch.traced:
            end_attempts(instance, sent, now_ns)
        for member in sent.members or ():
            member.entry.execution = execution
            if member.ended_ns:
                self._record_end(member, execution)
        version.timeline.record_batch(version.named, instance, sent, execution)

    def _on_response(
        self, sent: SentBatch, member: Member, response: InferResponse, now_ns: int
    ) -> None:
        version, entry = self._version, member.entry
        wanted = entry.state is not RESPONDED
        if self._decoupled:
            if wanted and not member.responses and not response.more:
                # An empty response shows that the model is decoupled, so its responses need not
                # wait.
                version.respond_partially(entry, InferResponse(0, more=True))
            if response.head or response.error is not None or not response.more:
                self._record_response(member, response, now_ns)
        if not wanted:
            version.segment_owners.drop_response(response)
        if response.more:
            if wanted:
                version.respond_partially(entry, response)
            return
        sent.end_member(member, now_ns)
        if sent.execution is not None:
            self._record_end(member, sent.execution)
        if wanted:
            del self._places[entry]
            version.end_entry(entry, response)

    def _record_response(self, member: Member, response: InferResponse, now_ns: int) -> None:
        statistics, entry = self._version.statistics, member.entry
        if is_null(entry):
            return
        statistics.record_response(member.responses, response, now_ns - member.responded_ns)
        if not member.responses and statistics.latencies is not None:
            statistics.latencies.record_first_response(entry, now_ns)
        if entry.trace is not None:
            entry.trace.responded(response, now_ns)
        member.responses += 1
        member.responded_ns = now_ns

    def _record_end(self, member: Member, execution: Execution) -> None:
        if member.rescheduled or is_null(member.entry):
            return
        if member.failed:
            self._version.statistics.record_failure(member.entry, member.ended_ns, BACKEND)
        else:
            # As on Triton, error responses of the model count as a success.
            self._version.statistics.record_end(member.entry, execution, member.ended_ns)

    def _reschedule(self, sent: SentBatch, member: Member, now_ns: int) -> None:
        """Queue an entry again, once. As on Triton, each iteration counts as an inference."""
        entry, version = member.entry, self._version
        if member.rescheduled or self._iterations is None:
            return
        member.rescheduled = True
        if not is_null(entry):
            execution = sent.execution or _unknown_execution(sent, now_ns)
            version.statistics.record_end(entry, execution, now_ns)
        place = self._places.get(entry)
        if place is None or place.member is not member:
            return
        del self._places[entry]
        if member.responses:
            self._responses[entry] = member.responses
        restarts = 0 if entry.member is None else entry.member.restarts
        bound = (
            member.responses > 0
            or version.config.at_most_once
            # After so many restarts the request may be the reason why its instances were lost.
            or restarts >= version.limits.max_retries
        )
        self._iterations.reschedule(entry, now_ns, bound=bound)
        version.wake()

    def lose_batch(self, sent: SentBatch, cause: str, now_ns: int) -> list[Entry]:
        """Return the entries of a lost batch that must run again; fail those with responses."""
        retries = []
        for member in sent.members or ():
            entry = member.entry
            if member.ended_ns:
                if sent.execution is None:
                    self._record_end(member, _unknown_execution(sent, now_ns))
                continue
            self._places.pop(entry, None)  # so that the lost instance is not sent a CANCEL
            if not member.responses:
                retries.append(entry)
            elif entry.state is not RESPONDED:
                text = f"{cause}, {member.responses} responses into the request"
                self._version.fail_entry(entry, Unavailable(text, accepted=True), now_ns)
        return retries


def _unknown_execution(sent: SentBatch, now_ns: int) -> Execution:
    return Execution(sent.started_ns, now_ns, 0, 0, 0, 0, gpu_uuid=sent.gpu_uuid)
