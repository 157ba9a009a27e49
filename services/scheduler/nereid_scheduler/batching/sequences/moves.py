"""Moves of sequences' implicit states from one instance to another.

A draining instance exports its states, a few at a time; the scheduler holds each state until the
sequence's next request takes it along to its new instance. A lost instance exports nothing: its
sequences go on from their snapshots if the model has snapshots, otherwise they are lost.

`Sequence.transfer` is the state of a move: EXPORT until the state has come (`end_export`), RETRY
until the executed request is queued again (`resume`), FETCH until the snapshot has come
(`end_fetch`), and `None` when nothing moves. Pure: knows no instance, store or batch queue; it
reports a sequence that can go on, or that is lost, to its callbacks.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from nereid_scheduler.core.requests.recovery import Recovery, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from collections.abc import Sequence as Entries

    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.sequence import Sequence, SequenceMember

# Bound on the states and requests of one model version that this process keeps. Above it no more
# states are exported, and each request of a model with snapshots makes one.
_MAX_KEPT_BYTES: Final = 256 << 20


class Moves:
    """All moves of one model version's sequences."""

    def __init__(
        self,
        interval: int,
        on_restored: Callable[[Sequence], None],
        on_lost: Callable[[Sequence, str], None],
        max_kept_bytes: int = _MAX_KEPT_BYTES,
    ) -> None:
        """interval: number of requests from one snapshot to the next; 0 means no snapshots.

        on_restored: a sequence can go on anywhere. on_lost: a sequence cannot go on, and why.
        """
        self.interval = interval
        # Snapshots are kept in a store, so they have to be fetched.
        self.has_store = False
        self.max_kept_bytes = max_kept_bytes
        self.kept_bytes = 0
        # The instance that was lost last, and others like it, can be given states.
        self.are_possible = False
        # Sequences whose snapshots have to be fetched.
        self.to_fetch: list[Sequence] = []
        self._on_restored = on_restored
        self._on_lost = on_lost
        # By draining instance and slot number: the sequence whose state is still there.
        self._exports: dict[Hashable, dict[int, Sequence]] = {}
        self._numbers = count(1)
        # Number of sequences that have a Recovery though the model has no snapshots.
        self._moved = 0

    def new_recovery(self) -> Recovery:
        """Return a Recovery with a number of its own and the initial state."""
        return Recovery(next(self._numbers))

    # ---- requests

    def begin_request(self, recovery: Recovery, member: SequenceMember) -> None:
        """Record that a request leaves for the instance of its sequence's slot."""
        member.restore = recovery.take_restore()
        member.returns_state = bool(
            self.interval
            and not member.end
            and (
                recovery.needs_snapshot(self.interval)
                or self.full
                # A state that came here from another instance must be written to the store.
                or (self.has_store and recovery.state)
            )
        )
        recovery.open += 1

    @property
    def idle(self) -> bool:
        """True if executions need not be reported."""
        return not self.interval and not self._moved

    def end_batch(
        self, entries: Entries[Entry], failed: Entries[bool], states: Mapping[int, bytes]
    ) -> list[tuple[Recovery, bytes]]:
        """Record the execution of a batch; return the snapshots to store.

        states: what the instance returned, by slot number. A snapshot is the state after `done`
        requests of its Recovery.
        """
        snapshots = []
        for entry, has_failed in zip(entries, failed, strict=True):
            member = entry.member
            recovery = None if member is None else member.sequence.recovery
            if member is None or recovery is None:
                continue
            recovery.open -= 1
            recovery.done += 1
            self.kept_bytes -= recovery.kept_bytes
            state = states.get(member.slot_number) if member.returns_state else None
            if member.end or not self.interval:
                self._drop(member.sequence)
                continue
            if state:
                recovery.set_base(None if self.has_store else state)
                if self.has_store:
                    snapshots.append((recovery, state))
            elif has_failed:
                # The failed request may have changed the state, or not.
                recovery.forget()
            else:
                recovery.add_request(entry.request)
            if self.kept_bytes + recovery.kept_bytes > self.max_kept_bytes:
                recovery.forget()
            self.kept_bytes += recovery.kept_bytes
        return snapshots

    # ---- draining instances

    def is_placed(self, sequence: Sequence) -> bool:
        """Return whether the sequence's instance has its state."""
        return sequence.recovery is None or sequence.recovery.placed

    def await_export(self, sequence: Sequence, instance: Hashable, slot_number: int) -> None:
        """Expect a sequence's state from its draining instance, once that has no batch any more."""
        sequence.transfer = Transfer.EXPORT
        self._exports.setdefault(instance, {})[slot_number] = sequence

    def slots_to_export(self, instance: Hashable) -> list[int]:
        """Return the slots whose states have to be moved; first those with waiting requests."""
        exports = self._exports.get(instance, {})
        for slot_number, sequence in list(exports.items()):
            if sequence.transfer is not Transfer.EXPORT:
                del exports[slot_number]  # the sequence has ended
        if not exports:
            self._exports.pop(instance, None)
        return sorted(exports, key=lambda slot: exports[slot].waiting is None)

    @property
    def full(self) -> bool:
        """True if no more states can be held here at the moment."""
        return self.kept_bytes > self.max_kept_bytes

    def end_export(self, instance: Hashable, slot_number: int, state: bytes, cause: str) -> None:
        """Record a state that has come; an empty one means that there was none."""
        sequence = self._exports.get(instance, {}).pop(slot_number, None)
        if sequence is None or sequence.transfer is not Transfer.EXPORT:
            return
        if not state:
            self._on_lost(sequence, cause)
            return
        recovery = sequence.recovery
        if recovery is None:
            recovery = sequence.recovery = self.new_recovery()
            self._moved += 1
        else:
            self.kept_bytes -= recovery.kept_bytes
        recovery.set_base(state)
        recovery.placed = False
        self.kept_bytes += recovery.kept_bytes
        sequence.transfer = None
        self._on_restored(sequence)

    def stop_exports(self, instance: Hashable) -> list[Sequence]:
        """Return the sequences whose states were still at a draining instance that is lost."""
        exports = self._exports.pop(instance, {})
        remaining = [
            sequence for sequence in exports.values() if sequence.transfer is Transfer.EXPORT
        ]
        for sequence in remaining:
            sequence.transfer = None
        return remaining

    # ---- lost instances

    def recover(self, sequence: Sequence) -> bool:
        """Return whether a sequence can go on after its instance was lost.

        If so, call resume() once what the instance executed of it waits again.
        """
        recovery = sequence.recovery
        if not self.are_possible or recovery is None or not recovery.exact:
            return False
        if recovery.open != sequence.executing:
            # A request was cancelled while it ran, so it is not known whether it has run.
            return False
        recovery.open = 0
        recovery.placed = False
        if sequence.executing:
            sequence.transfer = Transfer.RETRY
        return True

    def resume(self, sequence: Sequence) -> None:
        """Let a sequence go on, as soon as its snapshot is here."""
        assert sequence.recovery is not None, "a sequence that cannot go on"
        if sequence.recovery.state is None:
            sequence.transfer = Transfer.FETCH
            self.to_fetch.append(sequence)
        else:
            sequence.transfer = None
            self._on_restored(sequence)

    def end_fetch(self, sequence: Sequence, state: bytes | None, cause: str) -> None:
        """Record a fetched snapshot; `None` means that the store no longer has it."""
        recovery = sequence.recovery
        if sequence.transfer is not Transfer.FETCH or recovery is None:
            return  # the sequence has ended
        sequence.transfer = None
        if state is None:
            self._on_lost(sequence, cause)
            return
        recovery.state = state
        self.kept_bytes += len(state)
        self._on_restored(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that is over."""
        sequence.transfer = None
        if sequence.recovery is not None:
            self.kept_bytes -= sequence.recovery.kept_bytes
            self._drop(sequence)

    def _drop(self, sequence: Sequence) -> None:
        if not self.interval:
            self._moved -= 1
        sequence.recovery = None
