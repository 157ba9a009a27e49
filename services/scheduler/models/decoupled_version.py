"""A decoupled model's version: its requests have any number of answers, each told as it comes.

An instance is free for its next batch as soon as it says so, though requests of earlier ones are
still open there. Such a request ends with its last answer, or with its instance: it runs again only
if nothing of it was told. Instances that heed controls hear of clients that went, or that cannot
keep up.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nereid.core.codecs import read_response
from nereid.core.errors import Internal, Unavailable, Unimplemented
from nereid.core.messages import DECOUPLED, InferResponse
from nereid.observability.metrics import BACKEND
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.executors.instance import control_message
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.observability.execution import Execution
from nereid.services.scheduler.observability.request_traces import end_attempts
from nereid.services.scheduler.requests.entry import State, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.core.errors import NereidError
    from nereid.core.messages import InferRequest
    from nereid.model_config import ModelConfig
    from nereid.services.scheduler.executors.instance import Instance, Running
    from nereid.services.scheduler.models.model_version import OnResponse
    from nereid.services.scheduler.requests.entry import Batch, Entry

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns


def check_taker(config: ModelConfig, request: InferRequest) -> None:
    """Raise if the model is decoupled and whoever asks takes one answer only."""
    if config.decoupled and not request.accepts_many:
        raise Unimplemented(DECOUPLED, accepted=True)


@dataclass(slots=True, eq=False)
class _Member:
    """A request that an instance was given, until its last answer. Its entry may end before."""

    entry: Entry
    given: _Given
    place: int
    responses: int = 0
    responded_ns: int = 0
    ended_ns: int = 0
    failed: bool = False


@dataclass(slots=True, eq=False)
class _Given:
    """A batch that an instance was given, until the last of its members has ended."""

    instance: Instance
    running: Running
    members: list[_Member] = field(default_factory=list)
    open: int = 0
    # How it went; None: the instance is still executing it.
    execution: Execution | None = None


class DecoupledVersion(ModelVersion):
    """As ModelVersion, but on_answer is called for each answer; the last one alone lacks `more`."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self._given: dict[Instance, dict[int, _Given]] = {}
        # Those whose instance may have more to say of them.
        self._members: dict[Entry, _Member] = {}

    # ---- requests

    def submit(
        self, request: InferRequest, on_response: OnResponse, *, at_once: bool = False
    ) -> Entry:
        check_taker(self.config, request)
        return super().submit(request, on_response, at_once=at_once)

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """The entry's client cannot keep up with the answers, or it can again."""
        member = self._members.get(entry)
        if member is not None:
            _tell_instance(member, pb.MemberControl.PAUSE if paused else pb.MemberControl.RESUME)

    def _close(self, entry: Entry, response: InferResponse | None) -> None:
        member = self._members.pop(entry, None)
        if member is not None:
            # It ends before its last answer.
            _tell_instance(member, pb.MemberControl.CANCEL)
        super()._close(entry, response)

    # ---- instances

    def _start(self, batch: Batch, now_ns: int) -> Instance:
        instance = super()._start(batch, now_ns)
        running = instance.running
        if running is not None:
            given = _Given(instance, running, open=len(batch.entries))
            for place, entry in enumerate(batch.entries):
                member = _Member(entry, given, place, responded_ns=now_ns)
                given.members.append(member)
                self._members[entry] = member
            instance.open_members += given.open
            self._given.setdefault(instance, {})[running.id] = given
        return instance

    def lose_instance(self, instance: Instance, cause: str) -> None:
        """It is gone, and with it whatever it had. Only what was told nothing yet runs again."""
        self.retire_instance(instance)
        instance.running, instance.open_members = None, 0
        now_ns = _now_ns()
        again = []
        for given in self._given.pop(instance, {}).values():
            if given.execution is None and given.running.batch.traced:
                end_attempts(instance, given.running, now_ns, cause)
            for member in given.members:
                if member.ended_ns:
                    if given.execution is None:
                        self._count(member, _unknown(given.running, now_ns))
                    continue
                self._members.pop(member.entry, None)  # there is nobody to tell that it ends
                if not member.responses:
                    again.append(member.entry)
                elif member.entry.state is not State.RESPONDED:
                    text = f"{cause}, {member.responses} responses into the request"
                    self._fail(member.entry, Unavailable(text, accepted=True), now_ns)
        self._run_again(again, cause, now_ns)

    def executed(self, instance: Instance, message: bytes) -> None:
        """An instance has answers to some of what it was given, or is free again."""
        now_ns = _now_ns()
        try:
            frame = pb.Executed.FromString(message)
            given = self._given.get(instance, {}).get(frame.id)
            if given is None:
                _log.error("%s answered a batch that it does not have", instance.name)
                return
            responses = list(_responses(given, frame))
        except Exception:
            _log.exception("the answer of instance %s makes no sense", instance.name)
            error = Internal("the executor's answer cannot be understood", accepted=True)
            self._give_up(instance, error, now_ns)
            return
        if given.execution is None and not frame.busy:
            self._release(given, frame, now_ns)
        for member, response in responses:
            self._take(member, response, now_ns)
        if not given.open and given.execution is not None:
            del self._given[instance][frame.id]
        if not instance.at_work:
            instance.on_idle()

    def open_at(self, instance: Instance) -> list[Entry]:
        """The requests that it has and that are not ended."""
        given = self._given.get(instance, {}).values()
        return [each.entry for one in given for each in one.members if not each.ended_ns]

    # ---- answers

    def _release(self, given: _Given, frame: pb.Executed, now_ns: int) -> None:
        """Its instance can execute the next batch."""
        running, instance = given.running, given.instance
        given.execution = execution = running.execution(frame, now_ns)
        instance.running = None
        self._router.release(instance)
        self._dispatch(now_ns)
        self.statistics.record_execution(running.batch, execution)
        if running.batch.traced:
            end_attempts(instance, running, now_ns)
        for member in given.members:
            member.entry.execution = execution
            if member.ended_ns:
                self._count(member, execution)

    def _take(self, member: _Member, response: InferResponse, now_ns: int) -> None:
        entry, given = member.entry, member.given
        wanted = entry.state is not State.RESPONDED
        if wanted and not member.responses and not response.more:
            # Says what kind of model this is: its answers wait for no other request's.
            self._tell(entry, InferResponse(0, more=True))
        if response.head or response.error is not None or not response.more:
            self._count_response(member, response, now_ns)
        if not wanted:
            self.shared_tensors.unwanted(response)
        if response.more:
            if wanted:
                self._tell(entry, response)
            return
        member.ended_ns = now_ns
        given.open -= 1
        given.instance.open_members -= 1
        if given.execution is not None:
            self._count(member, given.execution)
        if wanted:
            del self._members[entry]
            self._close(entry, response)

    def _tell(self, entry: Entry, response: InferResponse) -> None:
        if self._order is None:
            tell(entry, response)
        else:
            for one, held in self._order.add(entry, (entry, response)):
                tell(one, held)

    def _count_response(self, member: _Member, response: InferResponse, now_ns: int) -> None:
        statistics, entry = self.statistics, member.entry
        statistics.record_response(member.responses, response, now_ns - member.responded_ns)
        if not member.responses and statistics.latencies is not None:
            statistics.latencies.record_first_response(now_ns - entry.received_ns)
        if entry.trace is not None:
            entry.trace.responded(response, now_ns)
        member.responses += 1
        member.responded_ns = now_ns

    def _count(self, member: _Member, execution: Execution) -> None:
        """A member has ended, and how its batch went is known."""
        if member.failed:
            self.statistics.record_failure(member.entry, member.ended_ns, BACKEND)
        else:
            # One that an answer told of a failure counts as well, as on Triton.
            self.statistics.record_end(member.entry, execution, member.ended_ns)

    def _give_up(self, instance: Instance, error: NereidError, now_ns: int) -> None:
        """What it said cannot be understood: nothing that it has is worth waiting for."""
        given = self._given.pop(instance, {})
        if instance.running is not None:
            instance.running = None
            self._router.release(instance)
        instance.open_members = 0
        for each in given.values():
            for member in each.members:
                if self._members.get(member.entry) is member:
                    self._fail(member.entry, error, now_ns)
        self.wake()


def _unknown(running: Running, now_ns: int) -> Execution:
    """How an execution went that nobody tells of any more."""
    return Execution(running.started_ns, now_ns, 0, 0, 0, 0, gpu_uuid=running.gpu_uuid)


def _responses(given: _Given, frame: pb.Executed) -> Iterator[tuple[_Member, InferResponse]]:
    """What a frame says of a batch's members. Raises ValueError if it can be about none."""
    if not frame.partial and len(frame.responses) != len(given.members):
        raise ValueError(f"{len(frame.responses)} answers to {len(given.members)} requests")
    ended = {member.place for member in given.members if member.ended_ns}
    freed = given.execution is None and not frame.busy
    for index, message in enumerate(frame.responses):
        place = message.id if frame.partial else index
        if place >= len(given.members) or place in ended:
            raise ValueError(f"an answer to member {place}, which awaits none")
        member = given.members[place]
        response = read_response(message)
        if not response.more:
            ended.add(place)
            # Not the model's word, but its failure: it raised, or died.
            member.failed = response.error is not None and freed
        yield member, response


def _tell_instance(member: _Member, kind: pb.MemberControl.Kind) -> None:
    """Say what has become of a request, if its instance can be told."""
    instance = member.given.instance
    if instance.heeds_controls and instance.stream is not None:
        instance.stream.send(control_message(member.given.running.id, member.place, kind))
