"""Transfers the states of sequences between instances; `batching.sequences.moves` decides which.

Snapshots are kept in the cache. A snapshot's value begins with its number of requests, so that an
older one is never mistaken for the last one.
"""

from __future__ import annotations

import logging
import os
import struct
from functools import partial
from typing import TYPE_CHECKING, Final

from nereid.core.errors import ProtocolError
from nereid.core.tensors.digest import digest_of_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.executed import Executed
    from nereid.core.wire.messages import InferResponse
    from nereid.pb import nereid_pb2 as pb
    from nereid_scheduler.batching.sequences.moves import Moves
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.recovery import Recovery
    from nereid_scheduler.core.requests.sequence import Sequence as ClientSequence
    from nereid_scheduler.versions.caching.cache_client import CacheClient

_log = logging.getLogger(__name__)

_BASE: Final = struct.Struct("<Q")
_NOT_EXPORTED: Final = "its executor has left without it"
_NO_SNAPSHOT: Final = "its executor was lost, and there is no snapshot of it"


class StateTransfers:
    """State transfers for the sequences of one model version."""

    def __init__(
        self,
        version: str,
        moves: Moves,
        on_restored: Callable[[], None],
        snapshots: CacheClient | None,
    ) -> None:
        """version: for the log. on_restored: called after states have arrived."""
        self._version = version
        self._moves = moves
        self._on_restored = on_restored
        self._snapshots = snapshots if moves.interval else None
        moves.has_store = self._snapshots is not None
        # Random part of all keys: no snapshot of another scheduler or version is ever found.
        self._scope = os.urandom(16)
        # Instances whose export waits until this process has memory for more states.
        self._paused: set[RemoteInstance] = set()

    def moves_states_of(self, instance: RemoteInstance) -> bool:
        """Return whether an instance's sequences can continue elsewhere with their states."""
        return instance.has_states

    def begin_export(self, instance: RemoteInstance) -> None:
        """Begin to export the sequence states of an instance that gets no more batches."""
        if self._moves.slots_to_export(instance):
            instance.handing_over = True
            self.export(instance)

    def export(self, instance: RemoteInstance) -> None:
        """Ask an instance for the next states to export, if it has no batch."""
        batches = instance.batches
        if batches.first is not None or batches.exporting or not instance.handing_over:
            return
        slot_numbers = self._moves.slots_to_export(instance)
        if not slot_numbers:
            instance.handing_over = False
            if not instance.at_work:
                instance.on_idle()
        elif self._moves.full:
            self._paused.add(instance)
        else:
            instance.export_states(slot_numbers)

    def end_export(self, instance: RemoteInstance, states: Sequence[pb.SequenceState]) -> None:
        """Take the states that an instance has exported, and ask for those that did not fit."""
        if not states:
            _log.error(
                "instance %s returned no states of its sequences; they are lost", instance.name
            )
            for slot_number in self._moves.slots_to_export(instance):
                self._moves.end_export(instance, slot_number, b"", _NOT_EXPORTED)
        for state in states:
            self._moves.end_export(instance, state.slot, state.state, _NOT_EXPORTED)
        self._on_restored()
        self.export(instance)

    def resume_exports(self) -> None:
        """Continue paused exports if this process has memory for more states again."""
        if self._paused and not self._moves.full:
            paused, self._paused = self._paused, set()
            for instance in paused:
                self.export(instance)

    def check_states(self, entries: Sequence[Entry], reply: Executed) -> None:
        """Raise ProtocolError if a reply has a state that was not asked for, or has one twice."""
        awaited_slots = [
            entry.member.slot_number
            for entry in entries
            if entry.member and entry.member.returns_state
        ]
        for state in reply.states:
            if state.slot not in awaited_slots:
                raise ProtocolError(f"the state of slot {state.slot}, which was not asked for")
            awaited_slots.remove(state.slot)

    def end_batch(
        self, entries: Sequence[Entry], responses: Sequence[InferResponse], reply: Executed
    ) -> None:
        """Record an executed batch and store its snapshots, before the responses are sent."""
        moves = self._moves
        if moves.idle:
            return
        failed = [response.error is not None for response in responses]
        states = {sequence_state.slot: sequence_state.state for sequence_state in reply.states}
        for recovery, state in moves.end_batch(entries, failed, states):
            if self._snapshots is not None:
                value = _BASE.pack(recovery.base) + state
                self._snapshots.store(self._key(recovery), value)

    def defer_batch(self, entries: Sequence[Entry]) -> None:
        """Record a batch of deferred responses; no snapshot has their changes of the state."""
        if not self._moves.idle:
            self._moves.end_batch(entries, [True] * len(entries), {})

    def fetch_snapshots(self) -> None:
        """Fetch the snapshots of sequences whose instance was lost."""
        sequences, self._moves.to_fetch = self._moves.to_fetch, []
        for sequence in sequences:
            recovery = sequence.recovery
            if recovery is None or self._snapshots is None:
                continue
            on_value = partial(self._on_snapshot, sequence, recovery)
            if not self._snapshots.lookup(self._key(recovery), on_value):
                on_value(None)

    def _on_snapshot(
        self, sequence: ClientSequence, recovery: Recovery, value: bytes | None
    ) -> None:
        state = None
        if value is not None and value[: _BASE.size] == _BASE.pack(recovery.base):
            state = value[_BASE.size :]
        if state is None:
            _log.warning("a sequence of %s is lost: the cache lacks its snapshot", self._version)
        self._moves.end_fetch(sequence, state, _NO_SNAPSHOT)
        self._on_restored()

    def _key(self, recovery: Recovery) -> bytes:
        assert self._snapshots is not None, "a key where there is no cache"
        number = _BASE.pack(recovery.number)
        return digest_of_parts(self._snapshots.secrets.name_key, b"sequence", self._scope, number)


class NoTransfers(StateTransfers):
    """State transfers of a version that has no sequences, or whose states cannot be moved."""

    def __init__(self) -> None:
        pass

    def moves_states_of(self, instance: RemoteInstance) -> bool:  # noqa: ARG002 - of StateTransfers
        """Return False."""
        return False

    def begin_export(self, instance: RemoteInstance) -> None:
        """Export nothing."""

    def resume_exports(self) -> None:
        """Export nothing."""

    def check_states(self, entries: Sequence[Entry], reply: Executed) -> None:
        """Check nothing, as the states in a reply are ignored."""

    def end_batch(
        self, entries: Sequence[Entry], responses: Sequence[InferResponse], reply: Executed
    ) -> None:
        """Record nothing."""

    def defer_batch(self, entries: Sequence[Entry]) -> None:
        """Record nothing."""

    def fetch_snapshots(self) -> None:
        """Fetch nothing."""


NO_TRANSFERS: Final = NoTransfers()
