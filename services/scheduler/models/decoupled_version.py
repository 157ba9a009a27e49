"""A decoupled model's version: its requests have any number of responses, each sent as it comes.

An instance is free for its next batch as soon as it reports so, though requests of earlier ones are
still open there. Such a request ends with its last response, or with its instance: it runs again
only if none of its responses was sent. Instances that accept controls are notified of clients that
cancelled or cannot keep up.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nereid.core.codecs import read_response
from nereid.core.errors import Internal, Unavailable
from nereid.core.messages import InferResponse
from nereid.observability.metrics import BACKEND
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.batching.sequences.controls import is_null
from nereid.services.scheduler.executors.instance import Instance, Running
from nereid.services.scheduler.models.model_version import ModelVersion, VersionContext
from nereid.services.scheduler.observability.execution import Execution
from nereid.services.scheduler.observability.request_traces import end_attempts
from nereid.services.scheduler.requests.entry import Entry, RequestState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.core.errors import NereidError
    from nereid.model_config import ModelConfig
    from nereid.services.scheduler.requests.entry import Batch

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns


@dataclass(slots=True, eq=False)
class Member:
    """A request of a batch, until its last response. Its entry may end before."""

    entry: Entry
    batch: OpenBatch
    index: int
    responses: int = 0
    responded_ns: int = 0
    ended_ns: int = 0
    failed: bool = False
    # Its instance wants the request again.
    rescheduled: bool = False

    def send_control(self, kind: pb.MemberControl.Kind) -> None:
        self.batch.instance.send_control(self.batch.running.id, self.index, kind)


@dataclass(slots=True, eq=False)
class OpenBatch:
    """A batch that an instance was sent, until the last of its members has ended."""

    instance: Instance
    running: Running
    members: list[Member] = field(default_factory=list)
    open: int = 0
    # None: the instance is still executing it.
    execution: Execution | None = None


class DecoupledVersion(ModelVersion):
    """A ModelVersion that calls on_response for each response; all but the last have `more`."""

    def __init__(self, config: ModelConfig, number: int, context: VersionContext) -> None:
        super().__init__(config, number, context)
        self._open_batches: dict[Instance, dict[int, OpenBatch]] = {}
        # Entries that their instances may still respond to.
        self._members: dict[Entry, Member] = {}

    # ---- requests

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """The entry's client cannot keep up with the responses (paused), or can again."""
        member = self._members.get(entry)
        if member is not None:
            member.send_control(pb.MemberControl.PAUSE if paused else pb.MemberControl.RESUME)

    def _close(self, entry: Entry, response: InferResponse | None) -> None:
        member = self._members.pop(entry, None)
        if member is not None:
            # It ends before its instance's last response.
            member.send_control(pb.MemberControl.CANCEL)
        super()._close(entry, response)

    # ---- instances

    def _start(self, batch: Batch, now_ns: int) -> Instance:
        instance = super()._start(batch, now_ns)
        running = instance.running
        if running is not None:
            open_batch = OpenBatch(instance, running, open=len(batch.entries))
            for index, entry in enumerate(batch.entries):
                member = Member(entry, open_batch, index, responded_ns=now_ns)
                open_batch.members.append(member)
                if not is_null(entry):
                    self._members[entry] = member
            instance.open_members += open_batch.open
            self._open_batches.setdefault(instance, {})[running.id] = open_batch
        return instance

    def lose_instance(self, instance: Instance, cause: str, *, begun: bool = True) -> None:
        """It is lost, with all its batches. Only requests without a response run again."""
        self._remove_instance(instance, cause, lost=True)
        self._router.release_instance(instance)
        instance.running, instance.open_members = None, 0
        now_ns = _now_ns()
        retries = []
        for batch in self._open_batches.pop(instance, {}).values():
            if batch.execution is None and batch.running.batch.traced:
                end_attempts(instance, batch.running, now_ns, cause)
            for member in batch.members:
                if member.ended_ns:
                    if batch.execution is None:
                        self._record_end(member, unknown_execution(batch.running, now_ns))
                    continue
                self._members.pop(member.entry, None)  # the instance needs no CANCEL any more
                if not member.responses:
                    retries.append(member.entry)
                elif member.entry.state is not RequestState.RESPONDED:
                    text = f"{cause}, {member.responses} responses into the request"
                    self._fail(member.entry, Unavailable(text, accepted=True), now_ns)
        self._retry(retries, cause, now_ns, begun=begun)

    def executed(self, instance: Instance, message: bytes) -> None:
        """A message from an instance: responses to open requests, or it is free again."""
        now_ns = _now_ns()
        try:
            frame = instance.read_executed(message)
            batch = self._open_batches.get(instance, {}).get(frame.id)
            if batch is None:
                _log.error("response from %s to a batch that it does not have", instance.name)
                return
            responses = list(self._read_responses(batch, frame))
        except Exception:
            _log.exception("malformed response from instance %s; its requests fail", instance.name)
            error = Internal("the executor's response cannot be understood", accepted=True)
            self._fail_instance(instance, error, now_ns)
            return
        if batch.execution is None and not frame.busy:
            self._end_execution(batch, frame, now_ns)
        for member, response in responses:
            self._on_member_response(member, response, now_ns)
        if not batch.open and batch.execution is not None:
            del self._open_batches[instance][frame.id]
        if not instance.at_work:
            instance.on_idle()

    def entries_at(self, instance: Instance) -> list[Entry]:
        """The entries that it has and has not ended, also of batches that it has executed."""
        batches = self._open_batches.get(instance, {}).values()
        return [each.entry for batch in batches for each in batch.members if not each.ended_ns]

    # ---- responses

    def _end_execution(self, batch: OpenBatch, frame: pb.Executed, now_ns: int) -> None:
        """The instance can execute its next batch."""
        running, instance = batch.running, batch.instance
        batch.execution = execution = running.execution(frame, now_ns)
        instance.running = None
        self._release_instance(instance, now_ns)
        self.statistics.record_execution(running.batch, execution)
        if running.batch.traced:
            end_attempts(instance, running, now_ns)
        for member in batch.members:
            member.entry.execution = execution
            if member.ended_ns:
                self._record_end(member, execution)

    def _read_responses(
        self, batch: OpenBatch, frame: pb.Executed
    ) -> Iterator[tuple[Member, InferResponse]]:
        """A frame's responses and their members. Raises ValueError if one waits for none."""
        if not frame.partial and len(frame.responses) != len(batch.members):
            raise ValueError(f"{len(frame.responses)} responses to {len(batch.members)} requests")
        ended = {member.index for member in batch.members if member.ended_ns}
        freed = batch.execution is None and not frame.busy
        for position, message in enumerate(frame.responses):
            index = message.id if frame.partial else position
            if index >= len(batch.members) or index in ended:
                raise ValueError(f"a response to member {index}, which waits for none")
            member = batch.members[index]
            response = self._read_response(message)
            if not response.more:
                ended.add(index)
                # An error in the frame that ends the execution: the model raised, or its worker
                # died.
                member.failed = response.error is not None and freed
            yield member, response

    def _read_response(self, message: pb.InferResponse) -> InferResponse:
        return read_response(message)

    def _on_member_response(self, member: Member, response: InferResponse, now_ns: int) -> None:
        entry, batch = member.entry, member.batch
        wanted = entry.state is not RequestState.RESPONDED
        if wanted and not member.responses and not response.more:
            self._announce_responses(entry)
        if response.head or response.error is not None or not response.more:
            self._record_response(member, response, now_ns)
        if not wanted:
            self.segment_owners.drop_response(response)
        if response.more:
            if wanted:
                self._send_response(entry, response)
            return
        member.ended_ns = now_ns
        batch.open -= 1
        batch.instance.open_members -= 1
        if batch.execution is not None:
            self._record_end(member, batch.execution)
        if wanted:
            del self._members[entry]
            self._close(entry, response)

    def _announce_responses(self, entry: Entry) -> None:
        """Tell the gateway that the model is decoupled: its responses need not wait for those of
        earlier requests.
        """
        self._send_response(entry, InferResponse(0, more=True))

    def _send_response(self, entry: Entry, response: InferResponse) -> None:
        """Send a response that is not the entry's last."""
        if self._order is None:
            entry.respond(response)
        else:
            for each, held in self._order.order_response(entry, (entry, response)):
                each.respond(held)

    def _record_response(self, member: Member, response: InferResponse, now_ns: int) -> None:
        statistics, entry = self.statistics, member.entry
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
        """A member has ended, and its batch was executed."""
        if is_null(member.entry):
            return
        if member.failed:
            self.statistics.record_failure(member.entry, member.ended_ns, BACKEND)
        else:
            # As on Triton, a request whose model sent error responses is a success as well.
            self.statistics.record_end(member.entry, execution, member.ended_ns)

    def _fail_instance(self, instance: Instance, error: NereidError, now_ns: int) -> None:
        """Its message was malformed: fail all that it has."""
        batches = self._open_batches.pop(instance, {})
        if instance.running is not None:
            instance.running = None
            self._router.release_instance(instance)
        instance.open_members = 0
        for batch in batches.values():
            for member in batch.members:
                if self._members.get(member.entry) is member:
                    self._fail(member.entry, error, now_ns)
        self.wake()


def unknown_execution(running: Running, now_ns: int) -> Execution:
    """Of a batch whose instance was lost before it reported its times."""
    return Execution(running.started_ns, now_ns, 0, 0, 0, 0, gpu_uuid=running.gpu_uuid)
