"""What a scheduler records for timelines: batches, requests without one, and waits.

A batch is one tuple, made once its responses are sent. Events are recorded where they happen.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from nereid.services.scheduler.observability.execution import Execution
from nereid.timeline.records import BatchRecord, EndedRequest, Member, Wait

if TYPE_CHECKING:
    from nereid.services.scheduler.executors.instance_batches import SentBatch
    from nereid.services.scheduler.executors.remote_instance import RemoteInstance
    from nereid.services.scheduler.requests.entry import Entry
    from nereid.timeline.recorder import Recorder


class SchedulerTimeline:
    """The rings of one scheduler."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._batches = recorder.add_member_ring(BatchRecord, _read_batch, len(Member._fields))
        self._ended = recorder.add_ring(EndedRequest, _read_ended)
        self._waits = recorder.add_ring(Wait, itemgetter(1))

    def record_batch(
        self,
        model: tuple[str, int],
        instance: RemoteInstance,
        sent: SentBatch,
        execution: Execution,
        error: str = "",
    ) -> None:
        """A batch of a model and version was executed. error: why it failed."""
        members: list[int] = []
        for entry in sent.batch.entries:
            members += (entry.request.id, entry.received_ns, entry.enqueued_ns, entry.retries)
        record = (
            execution.finished_ns,
            model,
            instance.executor,
            sent.id,
            execution.instance,
            execution.batch_size,
            execution.idle_since_ns,
            sent.waited_since_ns,
            execution.started_ns,
            execution.compute_input_ns,
            execution.compute_infer_ns,
            execution.compute_output_ns,
            error,
            tuple(members),
        )
        self._batches.append_many(record)

    def record_lost(
        self,
        model: tuple[str, int],
        instance: RemoteInstance,
        sent: SentBatch,
        now_ns: int,
        cause: str,
    ) -> None:
        """An instance was lost with a batch."""
        size, idle_since_ns = sent.batch.size, sent.idle_since_ns
        times = sent.started_ns, now_ns, 0, 0, 0, 0
        execution = Execution(*times, b"", "", instance.name, size, idle_since_ns)
        self.record_batch(model, instance, sent, execution, cause)

    def record_ended(
        self, model: tuple[str, int], entry: Entry, now_ns: int, outcome: str, status: int
    ) -> None:
        """A request has ended without an execution."""
        times = entry.received_ns, entry.enqueued_ns
        self._ended.append((now_ns, model, entry.request.id, *times, outcome, status))

    def record_wait(self, wait: Wait) -> None:
        """A wait is over."""
        self._waits.append((wait.to_ns, wait))


def executing(model: tuple[str, int], executor: str, sent: SentBatch) -> BatchRecord:
    """The record of a batch that an instance of this executor executes."""
    members = (
        Member(each.request.id, each.received_ns, each.enqueued_ns, each.retries)
        for each in sent.batch.entries
    )
    return BatchRecord(
        model[0],
        str(model[1]),
        sent.instance,
        executor,
        sent.id,
        sent.batch.size,
        tuple(members),
        sent.idle_since_ns,
        sent.waited_since_ns or sent.started_ns,
        sent.started_ns,
        *(0, 0, 0, 0),
    )


def _read_batch(ended: tuple[Any, ...]) -> BatchRecord:
    finished_ns, model, executor, number, instance, size, *times, error, values = ended
    idle_since_ns, waited_since_ns, started_ns, input_ns, infer_ns, output_ns = times
    return BatchRecord(
        model[0],
        str(model[1]),
        instance,
        executor,
        number,
        size,
        tuple(map(Member, values[::4], values[1::4], values[2::4], values[3::4])),
        idle_since_ns,
        waited_since_ns or started_ns,
        started_ns,
        finished_ns,
        input_ns,
        infer_ns,
        output_ns,
        error,
    )


def _read_ended(ended: tuple[Any, ...]) -> EndedRequest:
    ended_ns, model, number, received_ns, enqueued_ns, outcome, status = ended
    name, version = model
    return EndedRequest(
        number, name, str(version), received_ns, enqueued_ns, ended_ns, outcome, status
    )
