"""Records timelines of a scheduler: batches, requests without a batch, and waits."""

from __future__ import annotations

from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from librt.strings import write_i32_le, write_i64_le

from nereid.core.correlation_ids import as_signed
from nereid.timeline.event_log import EventLog
from nereid.timeline.records import BatchRecord, EndedRequest, Member, Wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.timeline.recorder import Recorder
    from nereid.timeline.ring import PackedRing
    from nereid_scheduler.core.instances.instance_batches import SentBatch
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.execution import Execution

# Finish; version; number; start of idleness; sent; start; durations of inputs, model and outputs;
# size, number of members, and whether there is an error. The members follow.
_BATCH: Final = Struct("<10q2i")
_MEMBER: Final = Struct("<Q2qi")
_MAX_TEXT: Final = 512
# Largest number that compiled code can keep in a register.
_MAX_SHORT: Final = (1 << 62) - 1


class SchedulerTimeline:
    """Record the timeline of one scheduler in rings of fixed size."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder: Recorder | None = recorder
        self.events = recorder.events
        self._batches: PackedRing = recorder.add_packed_ring(BatchRecord, _read_batches)
        self._ended = recorder.add_ring(EndedRequest, _read_ended)
        self._waits = recorder.add_ring(Wait, itemgetter(1))

    def record_batch(self, model: tuple[str, int], sent: SentBatch, execution: Execution) -> None:
        """Record a batch of a model and version that was executed, or lost with its instance."""
        ring, entries, error = self._batches, sent.batch.entries, sent.error
        piece, objects = ring.piece, ring.objects
        try:
            write_i64_le(piece, execution.finished_ns)
            write_i64_le(piece, model[1])
            write_i64_le(piece, sent.id)
            write_i64_le(piece, execution.idle_since_ns)
            write_i64_le(piece, sent.waited_since_ns)
            write_i64_le(piece, execution.started_ns)
            write_i64_le(piece, execution.compute_input_ns)
            write_i64_le(piece, execution.compute_infer_ns)
            write_i64_le(piece, execution.compute_output_ns)
            write_i64_le(piece, execution.batch_size)
            write_i32_le(piece, len(entries))
            write_i32_le(piece, 1 if error else 0)
            for entry in entries:
                number = entry.request.id
                # The highest bit may be set in the number of an ensemble's step.
                write_i64_le(piece, number if number <= _MAX_SHORT else as_signed(number))
                write_i64_le(piece, entry.received_ns)
                write_i64_le(piece, entry.enqueued_ns)
                write_i32_le(piece, entry.retries)
        except ValueError:
            # An executor may report durations that do not fit.
            ring.drop()
            return
        # Storing `model` itself would let compiled code create a new tuple.
        objects.append(model[0])
        objects.append(sent.executor)
        objects.append(execution.instance)
        if error:
            objects.append(error[:_MAX_TEXT])
        ring.end(execution.finished_ns)

    def record_ended(
        self, model: tuple[str, int], entry: Entry, now_ns: int, outcome: str, status: int
    ) -> None:
        """Record a request that has ended without an execution."""
        times = entry.received_ns, entry.enqueued_ns
        self._ended.append((now_ns, model, entry.request.id, *times, outcome[:_MAX_TEXT], status))

    def record_wait(self, wait: Wait) -> None:
        """Record a wait that has ended."""
        self._waits.append((wait.to_ns, wait))


class NoTimeline(SchedulerTimeline):
    """Timeline of a scheduler that records events alone; batches and requests do not come to it."""

    def __init__(self) -> None:
        self.recorder = None
        self.events = EventLog()

    def record_wait(self, wait: Wait) -> None:
        """Record nothing."""


NO_TIMELINE: Final = NoTimeline()


def executing(model: tuple[str, int], sent: SentBatch) -> BatchRecord:
    """Return the record of a batch that an instance is executing."""
    members = (
        Member(entry.request.id, entry.received_ns, entry.enqueued_ns, entry.retries)
        for entry in sent.batch.entries
    )
    return BatchRecord(
        model[0],
        str(model[1]),
        sent.instance,
        sent.executor,
        sent.id,
        sent.batch.size,
        tuple(members),
        sent.idle_since_ns,
        sent.waited_since_ns or sent.started_ns,
        sent.started_ns,
        *(0, 0, 0, 0),
    )


def _read_batches(data: bytes, objects: list[Any]) -> Iterator[tuple[int, BatchRecord]]:
    at = 0
    others = iter(objects)
    while at < len(data):
        finished_ns, version, number, idle_since_ns, waited_since_ns, started_ns, *durations = (
            _BATCH.unpack_from(data, at)
        )
        input_ns, infer_ns, output_ns, size, count, failed = durations
        members_at = at + _BATCH.size
        at = members_at + count * _MEMBER.size
        model, executor, instance = next(others), next(others), next(others)
        yield (
            finished_ns,
            BatchRecord(
                model,
                str(version),
                instance,
                executor,
                number,
                size,
                tuple(map(Member._make, _MEMBER.iter_unpack(data[members_at:at]))),
                idle_since_ns,
                waited_since_ns or started_ns,
                started_ns,
                finished_ns,
                input_ns,
                infer_ns,
                output_ns,
                next(others) if failed else "",
            ),
        )


def _read_ended(ended: tuple[Any, ...]) -> EndedRequest:
    ended_ns, model, number, received_ns, enqueued_ns, outcome, status = ended
    name, version = model
    return EndedRequest(
        number, name, str(version), received_ns, enqueued_ns, ended_ns, outcome, status
    )
