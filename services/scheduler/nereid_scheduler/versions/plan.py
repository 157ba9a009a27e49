"""The batches that a version sends now, and the instance of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_scheduler.batching.batcher import Batcher
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.instances.router import Router
    from nereid_scheduler.core.requests.entry import Batch
    from nereid_scheduler.versions.waiting_batches import WaitingBatches


def plan(
    batcher: Batcher,
    router: Router[RemoteInstance],
    waiting: WaitingBatches,
    now_ns: int,
) -> list[tuple[RemoteInstance, Batch]]:
    """Return the batches to send, each with its instance, which is no longer free.

    Free instances get their batches first. If none is free, instances that are about to end their
    batch get a second one.
    """
    planned: list[tuple[RemoteInstance, Batch]] = []
    count = router.count
    if not count:
        return planned
    while router.free_instances:
        batch = batcher.next_batch(now_ns, count)
        if batch is None:
            return planned
        planned.append((router.acquire_for(batch.instance), batch))
    if batcher.pending:
        batcher.form_batches(now_ns, count)
        for instance, incomplete in waiting.candidates(now_ns):
            if not (incomplete or batcher.has_grown(now_ns, count)):
                break
            batch = batcher.next_batch(now_ns, count)
            if batch is None:
                break
            planned.append((instance, batch))
    return planned
