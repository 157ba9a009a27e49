"""What a scheduler records for timelines: batches, requests without one, and waits.

A batch is one tuple, made once its responses are sent. Events are recorded where they happen.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from nereid.services.scheduler.observability.execution import Execution
from nereid.timeline.records import BatchRecord, EndedRequest, Member, Wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.services.scheduler.executors.instance_batches import SentBatch
    from nereid.services.scheduler.executors.remote_instance import RemoteInstance
    from nereid.services.scheduler.requests.entry import Entry
    from nereid.timeline.recorder import Recorder


class SchedulerTimeline:
    """The rings of one scheduler."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._batches = recorder.add_member_ring(BatchRecord, _read_batch, len(Member._fields))
        self._append_batch = self._batches.append
        self._added = self._batches.added
        self._max_batches = self._added.maxlen or 0
        self._ended = recorder.add_ring(EndedRequest, _read_ended)
        self._waits = recorder.add_ring(Wait, itemgetter(1))

    def record_batch(
        self, model: tuple[str, int], instance: RemoteInstance, sent: SentBatch, error: str = ""
    ) -> None:
        """A batch of a model and version was executed. error: why it failed."""
        execution = sent.execution
        assert execution is not None, "a batch that was executed"
        entries = sent.batch.entries
        sent_ns = sent.waited_since_ns or execution.started_ns
        named = execution.finished_ns, model, instance.executor, sent.id, execution, sent_ns, error
        if len(entries) > 1 or len(self._added) == self._max_batches:
            self._batches.append_many((*named, _members_of(entries)))
        else:
            entry = entries[0]
            member = entry.request.id, entry.received_ns, entry.enqueued_ns, entry.retries
            self._append_batch((*named, member))

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
        sent_ns = sent.waited_since_ns or sent.started_ns
        named = now_ns, model, instance.executor, sent.id, execution, sent_ns, cause
        self._batches.append_many((*named, _members_of(sent.batch.entries)))

    def record_ended(
        self, model: tuple[str, int], entry: Entry, now_ns: int, outcome: str, status: int
    ) -> None:
        """A request has ended without an execution."""
        times = entry.received_ns, entry.enqueued_ns
        self._ended.append((now_ns, model, entry.request.id, *times, outcome, status))

    def record_wait(self, wait: Wait) -> None:
        """A wait is over."""
        self._waits.append((wait.to_ns, wait))


def _members_of(entries: Sequence[Entry]) -> tuple[int, ...]:
    values: list[int] = []
    for entry in entries:
        values += (entry.request.id, entry.received_ns, entry.enqueued_ns, entry.retries)
    return tuple(values)


def _read_batch(ended: tuple[Any, ...]) -> BatchRecord:
    _, model, executor, number, execution, sent_ns, error, values = ended
    return BatchRecord(
        model[0],
        str(model[1]),
        execution.instance,
        executor,
        number,
        execution.batch_size,
        tuple(map(Member, values[::4], values[1::4], values[2::4], values[3::4])),
        execution.idle_since_ns,
        sent_ns,
        execution.started_ns,
        execution.finished_ns,
        execution.compute_input_ns,
        execution.compute_infer_ns,
        execution.compute_output_ns,
        error,
    )


def _read_ended(ended: tuple[Any, ...]) -> EndedRequest:
    ended_ns, model, number, received_ns, enqueued_ns, outcome, status = ended
    name, version = model
    return EndedRequest(
        number, name, str(version), received_ns, enqueued_ns, ended_ns, outcome, status
    )
