"""What a scheduler records for timelines: batches, requests without one, and waits.

A batch is one tuple, made once its responses are sent. Events are recorded where they happen.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from nereid.timeline.records import BatchRecord, EndedRequest, Member, Wait

if TYPE_CHECKING:
    from nereid.services.scheduler.executors.instance_batches import SentBatch
    from nereid.services.scheduler.executors.remote_instance import RemoteInstance
    from nereid.services.scheduler.requests.entry import Entry
    from nereid.timeline.recorder import Recorder

# In the tuple of a batch.
_MEMBERS_AT = 8


class SchedulerTimeline:
    """The rings of one scheduler."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._batches = recorder.add_ring(BatchRecord, _read_batch, members_at=_MEMBERS_AT)
        self._ended = recorder.add_ring(EndedRequest, _read_ended)
        self._waits = recorder.add_ring(Wait, itemgetter(1))

    def record_batch(
        self, model: tuple[str, int], instance: RemoteInstance, sent: SentBatch, error: str = ""
    ) -> None:
        """A batch of a model and version was executed. error: why it failed."""
        execution = sent.execution
        assert execution is not None, "a batch that was executed"
        members = [
            (entry.request.id, entry.received_ns, entry.enqueued_ns, entry.retries)
            for entry in sent.batch.entries
        ]
        ended = (
            execution.finished_ns,
            model,
            instance.name,
            instance.executor,
            sent.id,
            sent.batch.size,
            execution.idle_since_ns,
            sent.waited_since_ns or execution.started_ns,
            members,
            execution.started_ns,
            execution.compute_input_ns,
            execution.compute_infer_ns,
            execution.compute_output_ns,
            error,
        )
        self._batches.add(ended, len(members))

    def record_lost(
        self,
        model: tuple[str, int],
        instance: RemoteInstance,
        sent: SentBatch,
        now_ns: int,
        cause: str,
    ) -> None:
        """An instance was lost with a batch."""
        members = [
            (entry.request.id, entry.received_ns, entry.enqueued_ns, entry.retries)
            for entry in sent.batch.entries
        ]
        sent_ns = sent.waited_since_ns or sent.started_ns
        place = instance.name, instance.executor, sent.id, sent.batch.size, sent.idle_since_ns
        ended = now_ns, model, *place, sent_ns, members, sent.started_ns, 0, 0, 0, cause
        self._batches.add(ended, len(members))

    def record_ended(
        self, model: tuple[str, int], entry: Entry, now_ns: int, outcome: str, status: int
    ) -> None:
        """A request has ended without an execution."""
        times = entry.received_ns, entry.enqueued_ns
        self._ended.add((now_ns, model, entry.request.id, *times, outcome, status))

    def record_wait(self, wait: Wait) -> None:
        """A wait is over."""
        self._waits.add((wait.to_ns, wait))


def _read_batch(ended: tuple[Any, ...]) -> BatchRecord:
    finished_ns, model, instance, executor, number, size, idle_since_ns, sent_ns = ended[:8]
    members, started_ns, input_ns, infer_ns, output_ns, error = ended[8:]
    return BatchRecord(
        model[0],
        str(model[1]),
        instance,
        executor,
        number,
        size,
        tuple(map(Member._make, members)),
        idle_since_ns,
        sent_ns,
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
