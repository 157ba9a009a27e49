"""The instances of one version: how they join, retire and leave."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher
    from nereid_scheduler.batching.times.batch_times import BatchTimes
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.instances.router import Router
    from nereid_scheduler.versions.state_transfers import StateTransfers
    from nereid_scheduler.versions.steps import Turns
    from nereid_scheduler.versions.waiting_batches import WaitingBatches
    from nereid_scheduler.versions.waits.executor_wait import ExecutorWait

_now_ns: Final = time.monotonic_ns


class Roster:
    """Instances of one version that get batches."""

    def __init__(  # noqa: PLR0913, PLR0917 (one collaborator each)
        self,
        router: Router[RemoteInstance],
        sequences: SequenceBatcher | None,
        waiting: WaitingBatches,
        times: BatchTimes,
        transfers: StateTransfers,
        executor_wait: ExecutorWait,
        turns: Turns,
    ) -> None:
        self._router = router
        self._sequences = sequences
        self._waiting = waiting
        self._times = times
        self._transfers = transfers
        self._executor_wait = executor_wait
        self._turns = turns
        # Instances that get no new sequences, and stay until their sequences are over.
        self._retiring: set[RemoteInstance] = set()

    def add(self, instance: RemoteInstance) -> None:
        """Add an instance that is ready for a batch."""
        instance.batches.idle_since_ns = _now_ns()
        self._router.add_instance(instance)
        if self._sequences is not None:
            self._sequences.add_instance(instance)
        self._executor_wait.end()
        self._turns.wake()

    def retire(self, instance: RemoteInstance) -> None:
        """Send an instance no more batches; it may finish the batches that it has."""
        self.remove(instance, f"instance '{instance.name}' is gone", lost=False)
        self._transfers.begin_export(instance)

    def retire_after_sequences(self, instance: RemoteInstance) -> None:
        """Send no new sequences. Old ones continue elsewhere with their states, or end here."""
        if self._sequences is not None and not self._transfers.moves_states_of(instance):
            self._sequences.retire_instance(instance)
            if self._sequences.has_sequences(instance):
                instance.keeps_sequences = True
                self._retiring.add(instance)
                return
        self.retire(instance)

    def end_retirements(self) -> None:
        """Retire the instances that were kept for sequences which are over."""
        sequences = self._sequences
        if not self._retiring or sequences is None:
            return
        for instance in [
            instance for instance in self._retiring if not sequences.has_sequences(instance)
        ]:
            self.retire(instance)
            if not instance.at_work:
                instance.on_idle()

    def remove(self, instance: RemoteInstance, cause: str, *, lost: bool) -> None:
        """Remove an instance, if it was not removed before."""
        if instance.keeps_sequences:
            instance.keeps_sequences = False
            self._retiring.discard(instance)
        self._waiting.remove_instance(instance)
        if instance.batches.waiting is None:  # otherwise its times decide when that is withdrawn
            self._times.forget_instance(instance)
        removed = self._router.remove_instance(instance)
        # A draining instance has left the router, but may be lost before its states were moved.
        if self._sequences is not None and (removed or lost):
            gives_states = self._transfers.moves_states_of(instance)
            self._sequences.remove_instance(instance, cause, lost=lost, gives_states=gives_states)
            self._turns.wake()
        if removed and not self._router.count:
            self._executor_wait.restart_clock()
            self._executor_wait.begin()
