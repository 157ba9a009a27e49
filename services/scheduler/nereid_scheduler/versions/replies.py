"""Reads the replies of instances, and sends their responses to the requests.

Usually one reply ends a batch, with a response to each of its requests. Otherwise the responses
come one by one, and each request of the batch is a *member*, which is open until its last response
has come:

- a decoupled model gives a request any number of responses;
- a model with iterative sequences may reschedule a request instead of giving its last response;
- a Python model may keep response senders and return without all responses. The missing ones are
  *deferred*: the instance gets its next batch, and sends them at any time later.

If the instance is lost, an open member runs again only if none of its responses was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import ProtocolError, Unavailable
from nereid.core.wire.messages import InferResponse
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.batching.sequences.controls import is_null
from nereid_scheduler.core.instances.remote_instance import cancel_member, read_each_response
from nereid_scheduler.core.requests.entry import RESPONDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.core.wire.executed import Executed
    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.sequences.iterative import IterativeBatcher
    from nereid_scheduler.core.instances.instance_batches import Member, SentBatch
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.execution import Execution
    from nereid_scheduler.versions.instance_pool import InstancePool
    from nereid_scheduler.versions.open_requests import OpenRequests
    from nereid_scheduler.versions.queue_limits import QueueLimits
    from nereid_scheduler.versions.state_transfers import StateTransfers

# Stands in for a response if the instance has rescheduled the request.
_RESCHEDULED: Final = InferResponse(0)


class _Place(NamedTuple):
    """Instance, batch and batch member of an entry that has no last response yet."""

    instance: RemoteInstance
    sent: SentBatch
    member: Member

    def send_control(self, kind: pb.MemberControl.Kind) -> None:
        """Send the instance a control message (cancel, pause or resume) for this member."""
        self.instance.send_control(self.sent.id, self.member.index, kind)


class Reply:
    """A reply that was read and recorded, and whose responses are still to be sent.

    execution: set if the reply ends the execution of its batch. responses: of a whole batch, in the
    order of its entries. members: responses that come one by one, each with its member; `None` for
    a whole batch.
    """

    __slots__ = ("executed", "execution", "members", "responses", "sent")

    def __init__(
        self,
        sent: SentBatch,
        executed: Executed,
        responses: list[InferResponse],
        members: list[tuple[Member, InferResponse]] | None,
        execution: Execution | None,
    ) -> None:
        self.sent = sent
        self.executed = executed
        self.responses = responses
        self.members = members
        self.execution = execution


class Replies:
    """Handle the replies to one model version's batches."""

    def __init__(  # noqa: PLR0913, PLR0917 (one collaborator each)
        self,
        pool: InstancePool,
        requests: OpenRequests,
        config: ModelConfig,
        transfers: StateTransfers,
        iterations: IterativeBatcher | None,
        limits: QueueLimits,
    ) -> None:
        """transfers: moves the states of the version's sequences, if they can be moved.

        iterations: batcher that reschedules requests; `None` if requests may not be rescheduled.
        """
        self._pool = pool
        self._requests = requests
        self._transfers = transfers
        self._iterations = iterations
        self._limits = limits
        self._at_most_once = config.at_most_once
        self._decoupled = config.decoupled
        # True if the responses to each batch come one by one.
        self.one_by_one = self._decoupled or iterations is not None
        # Maps an entry to its place, if its responses come one by one.
        self._places: dict[Entry, _Place] = {}
        # Maps a rescheduled entry to the number of responses that it has had.
        self._responses: dict[Entry, int] = {}
        # Entries whose clients cannot keep up, so that they stay paused when they are rescheduled.
        self._paused: set[Entry] = set()

    def on_sent(self, instance: RemoteInstance, sent: SentBatch) -> None:
        """Record that an instance was sent a batch."""
        if not self.one_by_one:
            return
        for member in sent.track_members(sent.started_ns):
            entry = member.entry
            if is_null(entry):
                continue
            self._places[entry] = place = _Place(instance, sent, member)
            member.responses = self._responses.pop(entry, 0)
            if entry in self._paused:
                place.send_control(pb.MemberControl.PAUSE)

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """Pause or resume an entry's responses; they can be paused if they come one by one."""
        place = self._places.get(entry)
        if place is not None:
            place.send_control(pb.MemberControl.PAUSE if paused else pb.MemberControl.RESUME)
        if paused and self._iterations is not None and entry.state is not RESPONDED:
            self._paused.add(entry)
        else:
            self._paused.discard(entry)

    def cancel(self, entry: Entry, instances: Iterable[RemoteInstance]) -> None:
        """Notify the instance that executes an entry that the client has cancelled it."""
        if not self.one_by_one:  # otherwise end_entry() does it
            cancel_member(entry, instances)

    def end_entry(self, entry: Entry) -> None:
        """Forget an ended entry; cancel it at its instance if its last response has not come."""
        place = self._places.pop(entry, None)
        if place is not None:
            place.send_control(pb.MemberControl.CANCEL)
        self._responses.pop(entry, None)
        self._paused.discard(entry)

    # ---- reading

    def read(self, instance: RemoteInstance, message: bytes, now_ns: int) -> Reply | None:
        """Read a reply, and record the execution that it ends; `None` if it has only states.

        Raises:
            ProtocolError: the reply is invalid. Nothing has changed.
        """
        batches = instance.batches
        if self.one_by_one:
            parsed = instance.read_reply(message)
            sent = batches.replying(parsed.id)
            members = self._read_members(sent, parsed)
            if sent.execution is not None or parsed.busy:
                return Reply(sent, parsed, [], members, None)
            self._reschedule_all(sent, members, now_ns)
            execution = self._pool.end_execution(instance, sent, parsed, now_ns)
            return Reply(sent, parsed, [], members, execution)
        executed, responses = instance.read_responses(message)
        if batches.exporting and executed.id == batches.exporting:
            if responses:
                raise ProtocolError("responses beside the states that it was asked for")
            if batches.end_export(executed.id, [state.slot for state in executed.states]):
                self._transfers.end_export(instance, executed.states)
                return None
        sent = batches.replying(executed.id)
        if executed.partial:
            return self._read_deferred(instance, sent, executed, now_ns)
        if sent.execution is not None:
            raise ProtocolError(f"batch {sent.id} was executed twice")
        sent.check_whole(len(responses))
        if executed.states:
            self._transfers.check_states(sent.batch.entries, executed)
        execution = self._pool.end_execution(instance, sent, executed, now_ns)
        return Reply(sent, executed, responses, None, execution)

    def _read_deferred(
        self, instance: RemoteInstance, sent: SentBatch, executed: Executed, now_ns: int
    ) -> Reply:
        """Read a reply after which members of the batch may lack their response."""
        if sent.execution is not None:
            return Reply(sent, executed, [], _deferred_members(sent, executed), None)
        if executed.busy:
            raise ProtocolError(f"responses to batch {sent.id} before it was executed")
        sent.track_members(now_ns)
        members = _deferred_members(sent, executed)
        execution = self._pool.end_execution(instance, sent, executed, now_ns)
        return Reply(sent, executed, [], members, execution)

    def _read_members(
        self, sent: SentBatch, executed: pb.Executed
    ) -> list[tuple[Member, InferResponse]]:
        """Return responses that come one by one, each with its member."""
        if not executed.partial:
            sent.check_whole(len(executed.responses))
        read: list[tuple[Member, InferResponse]] = []
        ended: set[int] = set()
        failed: list[Member] = []
        ends_execution = sent.execution is None and not executed.busy
        parsed = read_each_response(executed.responses)
        for place, (message, response) in enumerate(zip(executed.responses, parsed, strict=True)):
            member = sent.open_member(message.id if executed.partial else place)
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
                if response.error is not None and ends_execution:
                    # The model has raised an exception, or its worker has died.
                    failed.append(member)
            read.append((member, response))
        for member in failed:
            member.failed = True
        return read

    # ---- responding

    def respond(self, instance: RemoteInstance, reply: Reply | None, now_ns: int) -> None:
        """Send the responses of a reply from read(), and count them."""
        if reply is None:
            return
        if reply.members is None:
            self._respond_whole(reply, now_ns)
        else:
            self._respond_members(instance, reply, reply.members, now_ns)
        if instance.handing_over:
            self._transfers.export(instance)
        elif not instance.at_work:
            instance.on_idle()

    def _respond_whole(self, reply: Reply, now_ns: int) -> None:
        requests, sent, execution = self._requests, reply.sent, reply.execution
        responses = reply.responses
        assert execution is not None, "a whole batch that was not executed"
        entries = sent.batch.entries
        self._transfers.end_batch(entries, responses, reply.executed)
        # check_whole() has checked that there are as many responses as entries.
        for index, entry in enumerate(entries):
            response = responses[index]
            entry.execution = execution
            if response.error:
                if response.error.by_model:
                    # Count the request as served, as on Triton.
                    requests.records.statistics.record_error_response(entry, now_ns)
                else:
                    sent.failed.append(entry)
                    sent.error = sent.error or response.error.message
            requests.respond(entry, response, sent.revision)
        requests.records.end_batch(sent, execution, self._pool.target)

    def _respond_members(
        self,
        instance: RemoteInstance,
        reply: Reply,
        members: list[tuple[Member, InferResponse]],
        now_ns: int,
    ) -> None:
        requests, sent, execution = self._requests, reply.sent, reply.execution
        if execution is not None:
            requests.records.end_batch(sent, execution, self._pool.target)
            if not self.one_by_one:
                self._transfers.defer_batch(sent.batch.entries)
            for member in sent.members or ():
                member.entry.execution = execution
        for member, response in members:
            if response is _RESCHEDULED:
                self._reschedule(sent, member, now_ns)
                sent.end_member(member, now_ns)
            else:
                self._respond_member(sent, member, response, now_ns)
        instance.batches.end_responding(sent)

    def _respond_member(
        self, sent: SentBatch, member: Member, response: InferResponse, now_ns: int
    ) -> None:
        requests, entry = self._requests, member.entry
        wanted = entry.state is not RESPONDED
        if self._decoupled:
            if wanted and not member.responses and not response.more:
                # If the request has only one response, send an empty response first. It shows that
                # the model is decoupled: its responses need not wait for those of earlier requests.
                requests.respond_partially(entry, InferResponse(0, more=True))
            if response.head or response.error is not None or not response.more:
                self._record_response(member, response, now_ns)
        if response.more:
            if wanted:
                requests.respond_partially(entry, response)
            else:
                requests.segment_owners.drop_response(response)
            return
        sent.end_member(member, now_ns)
        if sent.execution is not None:
            requests.records.end_member(member, sent.execution, now_ns)
        if response.error is not None and response.error.by_model:
            requests.records.statistics.record_error_response(entry, now_ns)
        self._places.pop(entry, None)
        requests.respond(entry, response, sent.revision)

    def _record_response(self, member: Member, response: InferResponse, now_ns: int) -> None:
        if is_null(member.entry):
            return
        self._requests.records.record_response(
            member.entry, member.responses, response, member.responded_ns, now_ns
        )
        member.responses += 1
        member.responded_ns = now_ns

    # ---- iterations

    def _reschedule_all(
        self, sent: SentBatch, members: Sequence[tuple[Member, InferResponse]], now_ns: int
    ) -> None:
        """Reschedule members before the next batch is sent, so that it can include them."""
        for member, response in members:
            if response is _RESCHEDULED:
                self._reschedule(sent, member, now_ns)

    def _reschedule(self, sent: SentBatch, member: Member, now_ns: int) -> None:
        """Queue a member's entry again, unless this was done before or its client has cancelled.

        Each iteration counts as an inference, as on Triton. A request that has had a response does
        not begin anew when its instance is lost.
        """
        entry = member.entry
        if member.rescheduled or self._iterations is None:
            return
        execution = sent.execution or sent.lost_execution(now_ns)
        self._requests.records.end_member(member, execution, now_ns)
        member.rescheduled = True
        place = self._places.get(entry)
        if place is None or place.member is not member:
            return
        del self._places[entry]
        if member.responses:
            self._responses[entry] = member.responses
        restarts = 0 if entry.member is None else entry.member.restarts
        bound = (
            member.responses > 0
            or self._at_most_once
            # After so many restarts the request may be the reason why its instances were lost.
            or restarts >= self._limits.max_retries
        )
        self._iterations.reschedule(entry, now_ns, bound=bound)
        self._pool.wake()

    # ---- lost instances

    def lose_batch(self, sent: SentBatch, cause: str) -> list[Entry]:
        """Return the entries of a lost batch that must run again; fail those with responses."""
        if not self.one_by_one:
            return sent.open_entries()
        retries = []
        for member in sent.members or ():
            entry = member.entry
            if member.ended_ns:
                continue
            self._places.pop(entry, None)  # so that the lost instance is not sent a CANCEL
            if not member.responses:
                retries.append(entry)
            elif entry.state is not RESPONDED:
                text = f"{cause}, {member.responses} responses into the request"
                self._requests.fail_entry(entry, Unavailable(text, accepted=True))
        return retries


def _deferred_members(sent: SentBatch, executed: Executed) -> list[tuple[Member, InferResponse]]:
    """Return a reply's responses, each with its member.

    Raises ProtocolError if a member expects no response, or gets several.
    """
    indexes = [message.id for message in executed.responses]
    if len({*indexes}) < len(indexes):
        raise ProtocolError(f"several responses to a member of batch {sent.id}: {indexes}")
    members = [sent.open_member(index) for index in indexes]
    read = list(zip(members, read_each_response(executed.responses), strict=True))
    for member, response in read:
        # Count a request as served if the model itself responds with an error, as on Triton.
        member.failed = response.error is not None and not response.error.by_model
    return read
