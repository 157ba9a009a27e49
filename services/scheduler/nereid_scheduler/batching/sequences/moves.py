"""Moves the implicit states of sequences from one instance to another.

A draining instance exports its states. After a loss, sequences continue from their snapshots, if
any. `Sequence.transfer`: EXPORT until `end_export`, RETRY until the executed request is queued
again (`resume`), FETCH until `end_fetch`, and `None` if nothing moves.
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

# Limit of one version's states and requests in this process. Beyond it, no more states are
# exported, and a model with snapshots makes one with each request.
_MAX_KEPT_BYTES: Final = 256 << 20


class Moves:
    """All moves of the sequences of one model version."""

    def __init__(
        self,
        interval: int,
        on_restored: Callable[[Sequence], None],
        on_lost: Callable[[Sequence, str], None],
        max_kept_bytes: int = _MAX_KEPT_BYTES,
    ) -> None:
        """interval: requests between snapshots; 0: none. on_lost: also gets the reason."""
        self.interval = interval
        # True if snapshots are in a store outside this process, and must be fetched.
        self.has_store = False
        self.max_kept_bytes = max_kept_bytes
        self.kept_bytes = 0
        # Set when an instance is removed.
        self.are_possible = False
        # Sequences whose snapshots must be fetched from the store.
        self.to_fetch: list[Sequence] = []
        self._on_restored = on_restored
        self._on_lost = on_lost
        # Keys: a draining instance, and the number of a slot that still has the state.
        self._exports: dict[Hashable, dict[int, Sequence]] = {}
        self._numbers = count(1)
        # Number of Recoveries of a model without snapshots, for states from draining instances.
        self._moved = 0

    def new_recovery(self) -> Recovery:
        """Return a Recovery with a new number, for a sequence in its initial state."""
        return Recovery(next(self._numbers))

    def begin_request(self, recovery: Recovery, member: SequenceMember) -> None:
        """Record that a request is sent to the instance in which its sequence has a slot."""
        member.restore = recovery.take_restore()
        member.returns_state = bool(
            self.interval
            and not member.end
            and (
                recovery.needs_snapshot(self.interval)
                or self.full
                # A state from another instance is not in the store yet.
                or (self.has_store and recovery.state)
            )
        )
        recovery.open += 1

    @property
    def idle(self) -> bool:
        """True if executed batches change nothing here, so that end_batch() may be skipped."""
        return not self.interval and not self._moved

    def end_batch(
        self, entries: Entries[Entry], failed: Entries[bool], states: Mapping[int, bytes]
    ) -> list[tuple[Recovery, bytes]]:
        """Record the execution of a batch; return the snapshots to store. states: by slot."""
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
                # The failed request may have changed the state.
                recovery.forget()
            else:
                recovery.add_request(entry.request)
            if self.kept_bytes + recovery.kept_bytes > self.max_kept_bytes:
                recovery.forget()
            self.kept_bytes += recovery.kept_bytes
        return snapshots

    def is_placed(self, sequence: Sequence) -> bool:
        """Return whether the sequence's instance has its state."""
        return sequence.recovery is None or sequence.recovery.placed

    def await_export(self, sequence: Sequence, instance: Hashable, slot_number: int) -> None:
        """Expect a draining instance to export a sequence's state, once it has no batch left."""
        sequence.transfer = Transfer.EXPORT
        self._exports.setdefault(instance, {})[slot_number] = sequence

    def slots_to_export(self, instance: Hashable) -> list[int]:
        """Return the slots to export; those with waiting requests come first."""
        exports = self._exports.get(instance, {})
        for slot_number, sequence in list(exports.items()):
            if sequence.transfer is not Transfer.EXPORT:
                del exports[slot_number]  # the sequence has ended
        if not exports:
            self._exports.pop(instance, None)
        return sorted(exports, key=lambda slot: exports[slot].waiting is None)

    @property
    def full(self) -> bool:
        """True if this process keeps more bytes than allowed."""
        return self.kept_bytes > self.max_kept_bytes

    def end_export(self, instance: Hashable, slot_number: int, state: bytes, cause: str) -> None:
        """Record an exported state; if it is empty, the sequence is lost because of `cause`."""
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
        """Return the sequences whose states a lost instance had not exported while it drained."""
        exports = self._exports.pop(instance, {})
        remaining = [
            sequence for sequence in exports.values() if sequence.transfer is Transfer.EXPORT
        ]
        for sequence in remaining:
            sequence.transfer = None
        return remaining

    def recover(self, sequence: Sequence) -> bool:
        """Return whether a sequence can continue after its instance was lost.

        If so, call resume() once the sequence's executing requests are queued again.
        """
        recovery = sequence.recovery
        if not self.are_possible or recovery is None or not recovery.exact:
            return False
        if recovery.open != sequence.executing:
            # A request that was cancelled while it ran may have changed the state.
            return False
        recovery.open = 0
        recovery.placed = False
        if sequence.executing:
            sequence.transfer = Transfer.RETRY
        return True

    def resume(self, sequence: Sequence) -> None:
        """Let a sequence continue now, or once its snapshot is fetched."""
        assert sequence.recovery is not None, "a sequence that cannot go on"
        if sequence.recovery.state is None:
            sequence.transfer = Transfer.FETCH
            self.to_fetch.append(sequence)
        else:
            sequence.transfer = None
            self._on_restored(sequence)

    def end_fetch(self, sequence: Sequence, state: bytes | None, cause: str) -> None:
        """Record a fetched snapshot; without one, the sequence is lost because of `cause`."""
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
