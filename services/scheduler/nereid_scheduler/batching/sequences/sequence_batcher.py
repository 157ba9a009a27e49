"""Base class of the two strategies of sequence batching.

The states of a sequence are:

- in the *backlog*: it waits for a slot;
- *in a slot*: its requests wait or execute, and one may be *offered* to the next batch;
- *moving* (`transfer`): its instance drains or was lost, and its state moves to another;
- *lost*: its state is gone, so its next request fails unless that is a START;
- *over*: it had its END, was idle for too long, or ended early.

If a request is cancelled or expires, its sequence ends, because the model would miss a step. A
START for an open sequence begins it anew, whatever happens to earlier requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from nereid.core.errors import Cancelled, InvalidArgument, Unavailable
from nereid.core.sequence_owners import SEQUENCE_ID
from nereid.core.wire.messages import NO_CAPACITY_FOR_COPY
from nereid_scheduler.batching.queues import Expiries, deadline_passed, queue_full
from nereid_scheduler.batching.sequences.controls import ControlTensors
from nereid_scheduler.batching.sequences.moves import Moves
from nereid_scheduler.batching.sequences.table import SequenceTable, sequence_lost
from nereid_scheduler.core.requests.entry import RequestState
from nereid_scheduler.core.requests.recovery import Transfer
from nereid_scheduler.core.requests.sequence import (
    Sequence,
    SequenceMember,
    sequence_flags,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from collections.abc import Sequence as Entries

    from nereid.core.errors import NereidError
    from nereid.model_config import ModelConfig, SequenceBatching
    from nereid_scheduler.batching.times.batch_times import BatchTimes
    from nereid_scheduler.core.instances.router import Router
    from nereid_scheduler.core.requests.entry import Batch, Entry
    from nereid_scheduler.core.requests.slots import Slot, SlotRow

_SEQUENCE_TIMEOUT: Final = "timeout of the corresponding sequence has been expired"
_SEQUENCE_ENDED: Final = "an earlier request of the sequence was cancelled or has expired"


class SequenceBatcher(ABC):
    """Batcher for sequences. Each batch names its instance; the router knows which are free."""

    def __init__(  # noqa: PLR0913, PLR0917 (one fact each)
        self,
        config: ModelConfig,
        batching: SequenceBatching,
        router: Router[Hashable],
        times: BatchTimes,
        slots_per_instance: int,
        max_pending: int,
        client_share: float,
    ) -> None:
        # Number of entries that no instance has.
        self.pending = 0
        self.sequences = SequenceTable(
            config.name, slots_per_instance, batching.max_sequence_idle_us * 1000, client_share
        )
        self._model_name = config.name
        self._router = router
        self._times = times
        self._max_pending = max_pending
        self._controls = ControlTensors(config)
        self._expiries = Expiries()
        self._executing: dict[Entry, Sequence] = {}
        self._snapshot_interval = batching.snapshot_interval
        # Entries of sequences that ended early; they fail in the next turn.
        self._dropped: dict[Entry, NereidError] = {}
        self.moves = Moves(batching.snapshot_interval, self._restart, self._lose)

    @abstractmethod
    def next_batch(self, now_ns: int, instances: int) -> Batch | None:
        """Return a batch that names a free instance; `None` means that no batch is due."""

    def _append(self, sequence: Sequence, entry: Entry) -> None:
        sequence.append(entry)
        self._offer(sequence)

    @abstractmethod
    def _offer(self, sequence: Sequence) -> None:
        """Offer the first waiting request of a sequence with a slot to the next batch."""

    @abstractmethod
    def _withdraw(self, sequence: Sequence) -> Entry | None:
        """Take back a sequence's offer. Return the request if it was no longer waiting."""

    @abstractmethod
    def _remove_row(self, row: SlotRow) -> list[Sequence]:
        """Forget an instance's offers; return the sequences that had a slot or an offer there."""

    @abstractmethod
    def _has_offers(self, row: SlotRow) -> bool:
        """Return whether requests are offered to the next batch of this instance."""

    @abstractmethod
    def closes_ns(self, now_ns: int) -> int | None:
        """Return when the next queue delay of a batch ends; `None` if no batch is delayed."""

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Add a request to its sequence; raise InvalidArgument or Unavailable if it is refused."""
        if self._max_pending and self.pending >= self._max_pending:
            raise queue_full(entry)
        if entry.valid.batch_size > 1:
            raise InvalidArgument(
                f"inference request to model '{self._model_name}' must specify batch-size 1 due to"
                " requirements of sequence batcher"
            )
        request = entry.request
        flags = sequence_flags(request.parameters)
        if self._controls.has_id:
            self._controls.check(flags.id, request.request_id)
        sequence = self.sequences.admit(
            flags, now_ns, request.sequence_owner, request.copied_sequence
        )
        if flags.start:
            sequence.executed_id = 0
        elif request.resent and sequence.has_executed(request.id):
            # The request has changed the state, and the executor no longer has the response.
            sequence.lost = "a response was lost, and its request cannot run again"
            error = sequence_lost(sequence, self._model_name)
            self._end(sequence, error, sequence.split())
            raise error
        entry.member = SequenceMember(sequence, start=flags.start, end=flags.end)
        visible_id = sequence.visible_id
        if visible_id != flags.id:
            request.parameters = {**(request.parameters or {}), SEQUENCE_ID: visible_id}
        self._controls.add_to(request, visible_id, start=flags.start, end=flags.end)
        entry.enqueued_ns = now_ns
        entry.state = RequestState.QUEUED
        if sequence.slot is None and request.timeout_us:
            # As on Triton, requests expire only in the backlog.
            entry.timeout_ns = now_ns + request.timeout_us * 1000
        self.pending += 1
        if self._snapshot_interval and sequence.recovery is None and not sequence.begun:
            sequence.recovery = self.moves.new_recovery()
        self._expiries.push(entry, self.pending)
        self._add_entry(sequence, entry)

    def _add_entry(self, sequence: Sequence, entry: Entry) -> None:
        """Add a request to its sequence. A sequence of copies makes way for one without a slot."""
        if sequence.slot is not None:
            self._append(sequence, entry)
            return
        sequence.append(entry)
        copy = None if entry.request.is_shadow else self.sequences.copy_in_slot()
        if copy is not None:
            self._end_copies(copy)

    def end_sequence(self, key: Hashable) -> None:
        """End a sequence of copies, which no request will end."""
        sequence = self.sequences.find(key)
        if sequence is not None:
            self._end_copies(sequence)

    def _end_copies(self, sequence: Sequence) -> None:
        """End a sequence of copies; those that wait are not compared."""
        self._end(sequence, Unavailable(NO_CAPACITY_FOR_COPY.message, accepted=True), [])

    def requeue(self, entries: Entries[Entry]) -> None:
        """Queue requests of a lost instance again, if their sequences can continue elsewhere."""
        for entry in reversed(entries):
            sequence = self._executing.pop(entry)
            sequence.executing -= 1
            entry.state = RequestState.QUEUED
            entry.timeout_ns = None
            self.pending += 1
            sequence.prepend(entry)
            self._expiries.push(entry, self.pending)
            if sequence.transfer is Transfer.RETRY:
                self.moves.resume(sequence)
            else:
                self._restart(sequence)

    def retry_error(self, entry: Entry, cause: str) -> NereidError | None:
        """Return a lost entry's error. If it is `None`, requeue the entry at once."""
        member = member_of(entry)
        sequence = member.sequence
        if (member.start and not sequence.begun) or sequence.transfer is Transfer.RETRY:
            return None
        if member.end and self.moves.recover(sequence):
            # After its END was offered, the sequence had no slot, so remove_instance() missed it.
            return None
        return sequence_lost(sequence, self._model_name, cause)

    def remove_entry(self, entry: Entry) -> bool:
        """Remove an entry that no instance has, and end its sequence; return False if unknown."""
        if self._dropped.pop(entry, None) is not None:
            return True
        if entry.holder is None:
            return False
        sequence = member_of(entry).sequence
        later = self._take_out(entry, sequence)
        self._end(sequence, Cancelled(_SEQUENCE_ENDED, accepted=True), later)
        return True

    def is_blocked(self, entry: Entry) -> bool:
        """Return whether an entry's sequence has not begun and waits in the backlog for a slot."""
        sequence = member_of(entry).sequence
        return not sequence.begun and self.sequences.in_backlog(sequence)

    def end_entry(self, entry: Entry, now_ns: int) -> None:
        """Record an entry's last response, after which the next request of its sequence may run."""
        sequence = self._executing.pop(entry, None)
        if sequence is None:
            return
        sequence.executing -= 1
        sequence.begun = True
        sequence.executed_id = entry.request.id
        self.sequences.keep_open(sequence, now_ns)
        if sequence.transfer is Transfer.RETRY:
            # The request was lost with its instance and ended, so the model would miss a step.
            sequence.lost = "a request failed with its instance"
            self._end(sequence, sequence_lost(sequence, self._model_name), sequence.split())
        elif sequence.slot is not None:
            if sequence.waiting is not None:
                self._offer(sequence)
        elif sequence.transfer is not None:
            return
        elif member_of(entry).end:
            self.moves.forget(sequence)
        elif sequence.waiting is not None and not self.sequences.in_backlog(sequence):
            # The first request was lost with its instance and does not run again.
            sequence.lost = sequence.lost or "its first request failed"
            self._end(sequence, sequence_lost(sequence, self._model_name), sequence.split())

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        """Remove expired entries and those of ended sequences; return them with their errors."""
        expired: list[tuple[Entry, NereidError]] = []
        for entry in self._expiries.due(now_ns):
            if entry.holder is None:
                continue  # the entry has ended together with another entry of its sequence
            sequence = member_of(entry).sequence
            error: NereidError
            if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
                error = deadline_passed(self._model_name)
            elif self.sequences.in_backlog(sequence):
                error = Unavailable(_SEQUENCE_TIMEOUT, accepted=True)
            else:
                continue  # the sequence has left the backlog in time
            later = self._take_out(entry, sequence)
            expired.append((entry, error))
            self._end(sequence, Unavailable(_SEQUENCE_TIMEOUT, accepted=True), later)
        for sequence in self.sequences.expired(now_ns):
            self._end(sequence, Unavailable(_SEQUENCE_TIMEOUT, accepted=True), [])
        expired += self._dropped.items()
        self._dropped = {}
        return expired

    def wake_at_ns(self, now_ns: int) -> int | None:
        """Return the time at which an entry or a sequence expires, or a queue delay ends."""
        if self._dropped:
            return now_ns
        times = (self._expiries.next_ns(), self.sequences.next_expiry_ns(), self.closes_ns(now_ns))
        return min((time for time in times if time is not None), default=None)

    def has_grown(self, now_ns: int, instances: int) -> bool:  # noqa: ARG002 (a Batcher)
        """Return False, as a batch may depend on the responses of the batch before it."""
        return False

    def form_batches(self, now_ns: int, instances: int) -> None:  # noqa: B027 (on purpose)
        """Do nothing, as a batch is formed when its instance is free."""

    def batch_ended(self, instance: Hashable, batch: Batch, taken_ns: int, now_ns: int) -> None:  # noqa: B027 (on purpose)
        """Do nothing, as a free instance never waits for its last batch's clients."""

    def end_sequences(self, cause: str, entries: Iterable[Entry]) -> None:
        """End the sequences that have begun, as their states here may be out of date.

        Waiting requests fail because of `cause`; those from the next START on begin anew. entries:
        all open requests, since only these still know a sequence that has had its END.
        """
        waiting = [entry.member.sequence for entry in entries if entry.member is not None]
        for sequence in dict.fromkeys([*self.sequences.all_open(), *waiting]):
            if not (sequence.begun or sequence.executing):
                continue
            offered = self._withdraw(sequence)
            if offered is not None:
                sequence.prepend(offered)
            # `begun`: a first request that executes must not run again.
            sequence.begun, sequence.lost = True, cause
            error = sequence_lost(sequence, self._model_name)
            self._end(sequence, error, sequence.split())

    # ---- instances

    def add_instance(self, instance: Hashable) -> None:
        """Add a ready instance, whose slots take sequences from the backlog."""
        row = self.sequences.add_instance(instance)
        for sequence in row.sequences():
            self._offer(sequence)

    def retire_instance(self, instance: Hashable) -> None:
        """Give an instance no new sequences; remove it once has_sequences() is False."""
        row = self.sequences.slots.row_of(instance)
        if row is not None:
            self.sequences.slots.close_row(row)

    def has_sequences(self, instance: Hashable) -> bool:
        """Return whether a retired instance still has sequences, and so must get batches."""
        row = self.sequences.slots.row_of(instance)
        return row is not None and (bool(row.occupied) or self._has_offers(row))

    def remove_instance(
        self, instance: Hashable, cause: str, *, lost: bool, gives_states: bool = False
    ) -> None:
        """Give an instance no more batches; its sequences move or are lost.

        lost: executing requests get no responses. gives_states: states can be exported (see Moves).
        """
        self.moves.are_possible = gives_states
        row = self.sequences.slots.remove_row(instance)
        sequences = self.moves.stop_exports(instance) if lost else []
        if row is not None:
            sequences += self._remove_row(row)
        for sequence in reversed(sequences):
            if not lost and gives_states and (sequence.executing or sequence.begun):
                if not self.moves.is_placed(sequence):
                    self._restart(sequence)
                else:
                    self.moves.await_export(sequence, instance, _slot_number(sequence))
                    sequence.slot = None
                continue
            sequence.slot = None
            if lost and self.moves.recover(sequence):
                if not sequence.executing:
                    self.moves.resume(sequence)
            elif lost and sequence.executing and not sequence.begun:
                # If the first request can run again, the waiting requests run after it.
                sequence.lost = cause
            elif sequence.executing or sequence.begun or sequence.idle:
                # The executing requests must not run again, as the state is lost.
                self._lose(sequence, cause)
            else:
                self._restart(sequence)

    def _begin(self, entry: Entry, sequence: Sequence) -> None:
        sequence.executing += 1
        self._executing[entry] = sequence
        if sequence.executing == 1 and member_of(entry).begins_anew:
            # Unlike earlier requests, this entry can run again.
            sequence.begun = False
        if sequence.recovery is not None:
            self.moves.begin_request(sequence.recovery, member_of(entry))

    def _lose(self, sequence: Sequence, cause: str) -> None:
        """Mark a state as lost, and fail the waiting requests before the next START."""
        sequence.begun = True
        sequence.lost = cause
        self.moves.forget(sequence)
        later = sequence.split()
        failed = sequence.clear()
        self._drop_entries(failed, sequence_lost(sequence, self._model_name))
        if later:
            self._begin_anew(sequence, later)
        elif failed:
            # The client learns of the loss from the failed requests.
            self.sequences.drop(sequence)

    def _restart(self, sequence: Sequence) -> None:
        sequence.lost = ""
        self.sequences.return_to_backlog(sequence)
        if sequence.slot is not None:
            self._offer(sequence)

    def _next_in_slot(self, slot: Slot) -> None:
        self.sequences.next_in_slot(slot)
        if slot.sequence is not None:
            self._offer(slot.sequence)

    def _begin_anew(self, sequence: Sequence, later: Entries[Entry]) -> None:
        """Begin a sequence anew after it has ended early; `later` begins with a START."""
        successor = sequence
        if self.sequences.in_backlog(sequence):
            sequence.begun, sequence.lost = False, ""
        else:
            # Requests that execute, or a moving state, may still need the old object.
            successor = self.sequences.successor_of(sequence)
            self.sequences.replace(sequence, successor)
        if self._snapshot_interval:
            successor.recovery = self.moves.new_recovery()
        for entry in later:
            member_of(entry).sequence = successor
            successor.append(entry)
        self._offer(successor)

    def _take_out(self, entry: Entry, sequence: Sequence) -> list[Entry]:
        """Remove an entry; also remove and return the next START and all requests behind it."""
        if sequence.offered is entry:
            self._withdraw(sequence)
            later = sequence.split()
        else:
            later = sequence.split(entry)
            sequence.discard(entry)
        self.pending -= 1
        return later

    def _end(self, sequence: Sequence, error: NereidError, later: Entries[Entry]) -> None:
        """End a sequence early: its waiting requests fail. Requests in `later` begin it anew."""
        self.moves.forget(sequence)
        offered = self._withdraw(sequence)
        if offered is not None:
            self._drop_entries([offered], error)
        self._drop_entries(sequence.clear(), error)
        if later:
            self._begin_anew(sequence, later)
            return
        slot = self.sequences.drop(sequence)
        if slot is not None and slot.sequence is not None:
            self._offer(slot.sequence)

    def _drop_entries(self, entries: Iterable[Entry], error: NereidError) -> None:
        for entry in entries:
            entry.holder = None
            self.pending -= 1
            self._dropped[entry] = error


def member_of(entry: Entry) -> SequenceMember:
    """Return the SequenceMember of an entry that is in a sequence."""
    assert entry.member is not None, "an entry that is in no sequence"
    return entry.member


def _slot_number(sequence: Sequence) -> int:
    """Return the slot's number. If a sequence has left its slot, its END has the number."""
    if sequence.slot is not None:
        return sequence.slot.index + 1
    assert sequence.waiting is not None, "a sequence without a slot that had no END"
    return member_of(sequence.waiting[0]).slot_number
