"""Iterative sequences: a model may reschedule a request until the request has its last response.

An END alone does not free the slot: all requests must have ended. States are not moved, as they
exist between two iterations of a request that has not ended.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from nereid.core.errors import Cancelled, Unavailable
from nereid_scheduler.batching.sequences.direct import DirectBatcher
from nereid_scheduler.batching.sequences.oldest import OldestBatcher
from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher, member_of
from nereid_scheduler.batching.sequences.table import sequence_lost
from nereid_scheduler.core.requests.entry import RequestState

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from nereid.core.correlation_ids import CorrelationId
    from nereid.core.errors import NereidError
    from nereid.model_config import ModelConfig, SequenceBatching
    from nereid_scheduler.core.instances.router import Router
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.sequence import Sequence, SequenceMember
    from nereid_scheduler.core.requests.slots import Slot

# Parameter "number.iteration" by which an instance recognises a rescheduled request. Clients cannot
# send parameters with this prefix.
ITERATION: Final = "triton_iteration"
_ENDED: Final = "the sequence has ended"


class IterativeBatcher(SequenceBatcher):
    """SequenceBatcher for models that may reschedule requests."""

    def __init__(  # noqa: PLR0913, PLR0917 (one fact each)
        self,
        config: ModelConfig,
        batching: SequenceBatching,
        router: Router[Hashable],
        slots_per_instance: int,
        max_pending: int,
        client_share: float,
    ) -> None:
        super().__init__(config, batching, router, slots_per_instance, max_pending, client_share)
        self._numbers = count(1)
        self._ids = count(1)
        self._text_ids = self._controls.has_text_ids

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Add a request to its sequence; a request without a correlation id gets a new one."""
        parameters = dict(entry.request.parameters or {})
        is_alone = not parameters.get("sequence_id")
        if is_alone:
            parameters["sequence_id"] = self._new_id()
            # The client has not opened this sequence: it must not count toward the client's share.
            entry.request.sequence_owner = ""
            parameters["sequence_start"] = True
            parameters["sequence_end"] = False
        parameters[ITERATION] = f"{next(self._numbers)}.0"
        entry.request.parameters = parameters
        super().enqueue(entry, now_ns)
        member_of(entry).alone = is_alone

    def reschedule(self, entry: Entry, now_ns: int, *, bound: bool) -> None:
        """Queue an executed entry again; bound: it must not begin anew at another instance."""
        member = member_of(entry)
        sequence = self._executing.pop(entry)
        sequence.executing -= 1
        if bound:
            member.bound = sequence.begun = True
        entry.state = RequestState.QUEUED
        entry.enqueued_ns = now_ns
        entry.timeout_ns = None
        self._set_iteration(entry, member.iteration + 1)
        self.pending += 1
        sequence.prepend(entry)
        self._expiries.push(entry, self.pending)
        if sequence.slot is not None:
            self._offer(sequence)
        elif member.start and sequence.lost and not bound:
            sequence.begun = False
            self._restart(sequence)
        else:
            sequence.lost = sequence.lost or "another of its requests was cancelled or has expired"
            self._end(sequence, self._lost_error(member), sequence.split())

    def retry_error(self, entry: Entry, cause: str) -> NereidError | None:
        """Return a lost entry's error. A first request can run again (`None`) unless bound."""
        member = member_of(entry)
        if member.start and not member.bound:
            return None
        error = super().retry_error(entry, cause)
        return error and self._lost_error(member, cause)

    def is_blocked(self, entry: Entry) -> bool:  # noqa: ARG002 - slots become free by themselves
        """Return False: a slot becomes free without a further request from a client."""
        return False

    def end_entry(self, entry: Entry, now_ns: int) -> None:
        """Record an entry's last response; end its sequence if no request waits or executes."""
        sequence = self._executing.get(entry)
        super().end_entry(entry, now_ns)
        if sequence is not None and sequence.idle:
            self._end(sequence, Cancelled(_ENDED, accepted=True), [])

    def _drop_entries(self, entries: Iterable[Entry], error: NereidError) -> None:
        for entry in entries:
            member = member_of(entry)
            lost = self._lost_error(member) if member.sequence.lost else error
            super()._drop_entries([entry], lost)

    def _lost_error(self, member: SequenceMember, cause: str = "") -> Unavailable:
        """Return a lost request's error; it names a sequence only if the client gave an id."""
        sequence = member.sequence
        if not member.alone:
            return sequence_lost(sequence, self._model_name, cause)
        return Unavailable(
            f"the state of a request to model '{self._model_name}' is lost:"
            f" {sequence.lost or cause}; send the request again",
            accepted=True,
        )

    def _restart(self, sequence: Sequence) -> None:
        if sequence.waiting:
            self._set_iteration(sequence.waiting[0], 0)
            member_of(sequence.waiting[0]).restarts += 1
        super()._restart(sequence)

    def _next_in_slot(self, slot: Slot) -> None:
        """Do nothing: after an END, the sequence keeps its slot until the END's last response."""

    def _new_id(self) -> CorrelationId:
        while True:
            number = next(self._ids)
            correlation_id = str(number) if self._text_ids else number
            if correlation_id not in self.sequences:
                return correlation_id

    def _set_iteration(self, entry: Entry, iteration: int) -> None:
        """Set an entry's iteration number. Only the first iteration has START."""
        member, request = member_of(entry), entry.request
        member.iteration = iteration
        start = member.start and not iteration
        parameters = dict(request.parameters or {})
        number = str(parameters[ITERATION]).partition(".")[0]
        parameters[ITERATION] = f"{number}.{iteration}"
        parameters["sequence_start"] = start
        request.parameters = parameters
        self._controls.replace(request, member.sequence.visible_id, start=start, end=member.end)


class IterativeDirectBatcher(DirectBatcher, IterativeBatcher):
    """IterativeBatcher with the strategy "direct"."""


class IterativeOldestBatcher(OldestBatcher, IterativeBatcher):
    """IterativeBatcher with the strategy "oldest"."""
