"""Shorthands for the tests of batchers: a configured one, entries in, batches out."""

from nereid_scheduler.batching.batcher import Batch, Batcher, make_batcher
from nereid_scheduler.core.requests.entry import Entry
from nereid_scheduler.core.requests.execution import Execution
from tests.support.scheduler.samples import entry_of, model_of

US = 1000


def dynamic(batching: str = "", max_batch_size: int = 8) -> Batcher:
    return make_batcher(
        model_of(f"max_batch_size: {max_batch_size} dynamic_batching {{ {batching} }}")
    )


def enqueue(batcher: Batcher, *entries: Entry, now_ns: int = 0) -> list[Entry]:
    for entry in entries:
        batcher.enqueue(entry, now_ns)
    return list(entries)


def entries_of(amount: int, shape: str = "") -> list[Entry]:
    """Return entries of one shape."""
    return [entry_of(key=shape or ()) for _ in range(amount)]


def execution(
    compute_ns: int, *, round_trip_ns: int = 0, finished_ns: int = 1 << 50, gpu_uuid: str = ""
) -> Execution:
    """Return an execution of this duration, whose reply came a round trip after its dispatch."""
    started_ns = finished_ns - compute_ns - round_trip_ns
    return Execution(started_ns, finished_ns, 0, 0, compute_ns, 0, gpu_uuid=gpu_uuid)


def next_entries(batcher: Batcher, now_ns: int = 0) -> list[Entry]:
    batch = batcher.next_batch(now_ns, instances=1)
    return [] if batch is None else batch.entries


def reason(batch: Batch | None) -> str:
    assert batch is not None
    return batch.reason
