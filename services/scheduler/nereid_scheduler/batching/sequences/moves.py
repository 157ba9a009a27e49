"""How sequences' implicit states move from instance to instance.

From an instance that drains the states are exported, a few at a time; the scheduler holds each
until the sequence's next request takes it along to its new instance. From a lost instance nothing
moves: its sequences go on from their snapshots, if the model has these, else they are lost.
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

# Of states and requests in this process, of one model version. Above it no more states are
# exported, and each request of a model with snapshots makes one.
_MAX_KEPT_BYTES: Final = 256 << 20


class Moves:
    """One model version's."""

    def __init__(
        self,
        interval: int,
        on_restored: Callable[[Sequence], None],
        on_lost: Callable[[Sequence, str], None],
        max_kept_bytes: int = _MAX_KEPT_BYTES,
    ) -> None:
        """interval: every so many requests a snapshot; 0: none.

        on_restored: a sequence can go on anywhere; on_lost: a sequence cannot go on, and why.
        """
        self.interval = interval
        # Whether snapshots are kept elsewhere, so that they have to be fetched.
        self.has_store = False
        self.max_kept_bytes = max_kept_bytes
        self.kept_bytes = 0
        # Whether the instance that was lost last, and others like it, can be given states.
        self.are_possible = False
        # Sequences whose snapshots are to be fetched.
        self.to_fetch: list[Sequence] = []
        self._on_restored = on_restored
        self._on_lost = on_lost
        # By draining instances and slots: the sequences whose states they have.
        self._exports: dict[Hashable, dict[int, Sequence]] = {}
        self._numbers = count(1)
        # How many sequences have a Recovery though the model has no snapshots.
        self._moved = 0

    def new_recovery(self) -> Recovery:
        return Recovery(next(self._numbers))

    # ---- requests

    def begin_request(self, recovery: Recovery, member: SequenceMember) -> None:
        """It leaves for the instance of its slot."""
        member.restore = recovery.take_restore()
        member.returns_state = bool(
            self.interval
            and not member.end
            and (
                recovery.needs_snapshot(self.interval)
                or self.full
                # What came here from another instance is to go to the store.
                or (self.has_store and recovery.state)
            )
        )
        recovery.open += 1

    @property
    def idle(self) -> bool:
        """Whether executions need not be reported."""
        return not self.interval and not self._moved

    def end_batch(
        self, entries: Entries[Entry], failed: Entries[bool], states: Mapping[int, bytes]
    ) -> list[tuple[Recovery, bytes]]:
        """A batch was executed. states: those that it has returned, by slot number.

        Returns the snapshots to store, each of the state after `done` requests.
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
                # It may have changed the state, or not.
                recovery.forget()
            else:
                recovery.add_request(entry.request)
            if self.kept_bytes + recovery.kept_bytes > self.max_kept_bytes:
                recovery.forget()
            self.kept_bytes += recovery.kept_bytes
        return snapshots

    # ---- draining instances

    def is_placed(self, sequence: Sequence) -> bool:
        """Whether its instance has its state."""
        return sequence.recovery is None or sequence.recovery.placed

    def await_export(self, sequence: Sequence, instance: Hashable, slot_number: int) -> None:
        """Its instance drains: its state comes when the instance has no batch any more."""
        sequence.transfer = Transfer.EXPORT
        self._exports.setdefault(instance, {})[slot_number] = sequence

    def slots_to_export(self, instance: Hashable) -> list[int]:
        """Those whose states are still to be moved; sequences with waiting requests first."""
        exports = self._exports.get(instance, {})
        for slot_number, sequence in list(exports.items()):
            if sequence.transfer is not Transfer.EXPORT:
                del exports[slot_number]  # it has ended
        if not exports:
            self._exports.pop(instance, None)
        return sorted(exports, key=lambda each: exports[each].waiting is None)

    @property
    def full(self) -> bool:
        """Whether no more states can be held here at the moment."""
        return self.kept_bytes > self.max_kept_bytes

    def end_export(self, instance: Hashable, slot_number: int, state: bytes, cause: str) -> None:
        """A state has come; empty: there was none."""
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
        """A draining instance is lost: the sequences whose states it still had."""
        exports = self._exports.pop(instance, {})
        left = [each for each in exports.values() if each.transfer is Transfer.EXPORT]
        for sequence in left:
            sequence.transfer = None
        return left

    # ---- lost instances

    def recover(self, sequence: Sequence) -> bool:
        """Its instance is lost. Whether it can go on: call resume() once what the instance executed
        of it waits again.
        """
        recovery = sequence.recovery
        if not self.are_possible or recovery is None or not recovery.exact:
            return False
        if recovery.open != sequence.executing:
            # Of a request that was cancelled while it ran nobody knows whether it has run.
            return False
        recovery.open = 0
        recovery.placed = False
        if sequence.executing:
            sequence.transfer = Transfer.RETRY
        return True

    def resume(self, sequence: Sequence) -> None:
        """Let it go on, when its snapshot is here."""
        assert sequence.recovery is not None, "a sequence that cannot go on"
        if sequence.recovery.state is None:
            sequence.transfer = Transfer.FETCH
            self.to_fetch.append(sequence)
        else:
            sequence.transfer = None
            self._on_restored(sequence)

    def end_fetch(self, sequence: Sequence, state: bytes | None, cause: str) -> None:
        """Its snapshot has come; None: there is none any more."""
        recovery = sequence.recovery
        if sequence.transfer is not Transfer.FETCH or recovery is None:
            return  # it has ended
        sequence.transfer = None
        if state is None:
            self._on_lost(sequence, cause)
            return
        recovery.state = state
        self.kept_bytes += len(state)
        self._on_restored(sequence)

    def forget(self, sequence: Sequence) -> None:
        """It is over."""
        sequence.transfer = None
        if sequence.recovery is not None:
            self.kept_bytes -= sequence.recovery.kept_bytes
            self._drop(sequence)

    def _drop(self, sequence: Sequence) -> None:
        if not self.interval:
            self._moved -= 1
        sequence.recovery = None
