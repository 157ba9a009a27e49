"""A sequence batcher with its instances, whose batches the test executes."""

from typing import Any

import pytest

from nereid.core.errors import NereidError
from nereid_scheduler.batching.batcher import make_batcher
from nereid_scheduler.batching.sequences.controls import is_null
from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher
from nereid_scheduler.batching.times.batch_times import BatchTimes
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import Batch, Entry, RequestState
from tests.support.scheduler.samples import entry_of, model_of

DIRECT, OLDEST = "direct { }", "oldest { max_candidate_sequences: 2 }"


class SequenceSite:
    """Instances i0, i1, …"""

    def __init__(
        self,
        strategy: str,
        *,
        max_batch_size: int = 2,
        instances: int = 1,
        parameters: str = "",
        backend: str = "python",
        max_pending: int = 0,
        client_share: float = 1.0,
    ) -> None:
        """strategy: what sequence_batching has; parameters: the rest of the configuration."""
        text = f"max_batch_size: {max_batch_size} sequence_batching {{ {strategy} }} {parameters}"
        self.router: Router[Any] = Router()
        self.times = BatchTimes()
        batcher = make_batcher(
            model_of(text, backend=backend),
            self.router,
            self.times,
            max_pending=max_pending,
            client_share=client_share,
        )
        assert isinstance(batcher, SequenceBatcher)
        self.batcher: Any = batcher
        self.now_ns = 0
        for instance in range(instances):
            self.add(f"i{instance}")

    def add(self, instance: str) -> None:
        self.router.add_instance(instance)
        self.batcher.add_instance(instance)

    def remove(
        self, instance: str = "i0", *, lost: bool = True, gives_states: bool = False
    ) -> None:
        self.router.remove_instance(instance)
        self.batcher.remove_instance(
            instance, f"{instance} was lost", lost=lost, gives_states=gives_states
        )

    def enqueue(
        self,
        which: int | str = 0,
        flags: str = "",
        *,
        size: int = 1,
        shape: str = "",
        deadline_ns: int | None = None,
        **fields: Any,
    ) -> Entry:
        """A request of this sequence, or of none; s and e are START and END."""
        entry = entry_of(size, key=shape)
        entry.deadline_ns = deadline_ns
        for name, value in fields.items():
            setattr(entry.request, name, value)
        if which:
            entry.request.parameters = {
                "sequence_id": which,
                "sequence_start": "s" in flags,
                "sequence_end": "e" in flags,
            }
        self.batcher.enqueue(entry, self.now_ns)
        return entry

    def refused(
        self, which: int | str, flags: str = "", *, size: int = 1, **fields: Any
    ) -> NereidError:
        with pytest.raises(NereidError) as caught:
            self.enqueue(which, flags, size=size, **fields)
        return caught.value

    def batch(self) -> Batch | None:
        batch: Batch | None = self.batcher.next_batch(self.now_ns, self.router.count)
        if batch is not None:
            self.router.acquire(batch.instance)
        return batch

    def sent(self) -> Batch:
        """The next batch, of which there is one."""
        batch = self.batch()
        assert batch is not None
        return batch

    def rows(self) -> list[Entry | None]:
        """The requests of the next batch, null requests as None."""
        return [None if is_null(entry) else entry for entry in self.sent().entries]

    def finish(self, *entries: Entry, free: str = "i0") -> None:
        """Their last responses have come, and this instance is free."""
        if free:
            self.router.release_instance(free)
        for entry in entries:
            entry.state = RequestState.RESPONDED
            self.batcher.end_entry(entry, self.now_ns)

    def expire(self) -> list[tuple[Entry, NereidError]]:
        expired: list[tuple[Entry, NereidError]] = self.batcher.expire_entries(self.now_ns)
        return expired

    def failed(self) -> list[tuple[Entry, type[NereidError]]]:
        return [(entry, type(error)) for entry, error in self.expire()]
