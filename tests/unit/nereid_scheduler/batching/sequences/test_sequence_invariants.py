"""Both strategies under events that hypothesis makes: arrivals, cancellations, expiries, instances
that come, go and crash.
"""

from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nereid.core.errors import InvalidArgument, Unavailable
from nereid_scheduler.batching.batcher import make_batcher
from nereid_scheduler.batching.sequences.controls import is_null
from nereid_scheduler.batching.sequences.oldest import OldestBatcher
from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import Batch, Entry
from nereid_scheduler.core.requests.sequence import Sequence
from tests.support.scheduler.samples import entry_of, model_of

IDLE_US = 100
STRATEGIES = (
    "direct { }",
    "direct { minimum_slot_utilization: 0.5 max_queue_delay_microseconds: 20 }",
    "oldest { max_candidate_sequences: 1 }",
    "oldest { max_candidate_sequences: 3 max_queue_delay_microseconds: 10 }",
)


# Sequence, flags, timeout in the backlog and deadline in microseconds.
ARRIVALS = st.tuples(
    st.sampled_from([1, 1, 1, 2, 2, 3, 4]),
    st.sampled_from(["start", "start", "", "", "", "", "end", "both"]),
    st.sampled_from([0, 0, 0, 0, 15]),
    st.sampled_from([None, None, None, None, None, None, 40]),
)


class Sequences(RuleBasedStateMachine):
    """Every entry ends once; a sequence's entries run in order, where its state is."""

    @initialize(
        strategy=st.sampled_from(STRATEGIES),
        max_batch_size=st.sampled_from([0, 2, 4]),
        instances=st.integers(0, 2),
    )
    def start(self, strategy: str, max_batch_size: int, instances: int) -> None:
        config = model_of(
            f"max_batch_size: {max_batch_size} sequence_batching {{ {strategy}"
            f" max_sequence_idle_microseconds: {IDLE_US} }}"
        )
        assert config.sequences is not None
        self.oldest = config.sequences.oldest is not None
        self.rows = max(1, max_batch_size)
        self.router: Router[Any] = Router()
        batcher = make_batcher(config, self.router)
        assert isinstance(batcher, SequenceBatcher)
        self.batcher = batcher
        self.now_ns = 1_000_000
        self.instances = count()
        self.executing: dict[int, list[Entry]] = {}
        # By instances that may have their next batch.
        self.open: dict[int, list[Entry]] = {}
        self.inside: set[Entry] = set()
        self.ended: set[Entry] = set()
        # By sequence: where its requests have run, and the number of the last one.
        self.place: dict[Sequence, int] = {}
        self.last: dict[Sequence, int] = {}
        # Sequences that were ended after they had begun.
        self.over: set[Sequence] = set()
        # Instances that are to go, with the sequences that they had then.
        self.retired: dict[int, set[Sequence]] = {}
        for _ in range(instances):
            self.add_instance()

    @rule()
    def add_instance(self) -> None:
        instance = next(self.instances)
        self.router.add_instance(instance)
        self.batcher.add_instance(instance)

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=8), dispatches=st.booleans())
    def enqueue(self, arrivals: list[tuple[int, str, int, int | None]], dispatches: bool) -> None:
        for arrival in arrivals:
            self._enqueue_one(*arrival)
        if dispatches:
            self.dispatch()

    def _enqueue_one(
        self, which: int, flags: str, timeout_us: int, deadline_us: int | None
    ) -> None:
        entry = entry_of()
        entry.request.parameters = {
            "sequence_id": which,
            "sequence_start": flags in {"start", "both"},
            "sequence_end": flags in {"end", "both"},
        }
        entry.request.timeout_us = timeout_us
        entry.deadline_ns = self.now_ns + deadline_us * 1000 if deadline_us else None
        try:
            self.batcher.enqueue(entry, self.now_ns)
        except (InvalidArgument, Unavailable):
            assert flags in {"", "end"}
        else:
            self.inside.add(entry)

    @rule()
    def dispatch(self) -> None:
        while self._dispatch_one():
            pass

    def _dispatch_one(self) -> bool:
        batch = self.batcher.next_batch(self.now_ns, self.router.count)
        if batch is None:
            return False
        self.router.acquire(batch.instance)
        real = [entry for entry in batch.entries if not is_null(entry)]
        assert real
        assert batch.size == len(real) == len(batch.entries) - batch.nulls
        assert len(batch.entries) <= self.rows
        assert self.oldest is False or not batch.nulls
        sequences = [self._begin(entry, batch) for entry in real]
        assert len({*sequences}) == len(sequences)
        self.executing[batch.instance] = real
        return True

    def _begin(self, entry: Entry, batch: Batch) -> Sequence:
        assert entry in self.inside
        self.inside.discard(entry)
        member = entry.member
        assert member is not None
        sequence = member.sequence
        if member.start:
            self.place[sequence] = batch.instance
            self.over.discard(sequence)
        assert sequence not in self.over
        assert self.place[sequence] == batch.instance
        assert sequence in self.retired.get(batch.instance, {sequence})
        # In the order of arrival; one that runs again is older than what has not run.
        assert entry.request.id >= self.last.get(sequence, 0)
        self.last[sequence] = entry.request.id
        if self.oldest:
            running = [each for batch in self.executing.values() for each in batch]
            running += [each for batch in self.open.values() for each in batch]
            assert all(each.member and each.member.sequence is not sequence for each in running)
        return sequence

    @precondition(lambda self: self.executing)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        self._complete(data.draw(st.sampled_from(sorted(self.executing))))

    def _complete(self, instance: int) -> None:
        self.router.release_instance(instance)
        for entry in self.executing.pop(instance):
            self.batcher.end_entry(entry, self.now_ns)
            self._end(entry)

    @precondition(lambda self: self.executing)
    @rule(data=st.data())
    def free_early(self, data: st.DataObject) -> None:
        """A decoupled model's instance: its requests are still open."""
        instance = data.draw(st.sampled_from(sorted(self.executing)))
        self.open.setdefault(instance, []).extend(self.executing.pop(instance))
        self.router.release_instance(instance)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end_open(self, data: st.DataObject) -> None:
        self._end_open(data.draw(st.sampled_from(sorted(self.open))))

    def _end_open(self, instance: int) -> None:
        for entry in self.open.pop(instance):
            self.batcher.end_entry(entry, self.now_ns)
            self._end(entry)

    @precondition(lambda self: self.router.count)
    @rule(data=st.data())
    def retire_instance(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(sorted(self.router)))
        if instance not in self.retired:
            row = self.batcher.sequences.slots.row_of(instance)
            assert row is not None
            there = {*row.sequences()}
            there |= {each.member.sequence for each in self._offered(instance) if each.member}
            self.retired[instance] = there
            self.batcher.retire_instance(instance)

    def _offered(self, instance: int) -> list[Entry]:
        """The requests that wait for its next batch."""
        if not isinstance(self.batcher, OldestBatcher):
            return []
        offers = self.batcher._offers.items()
        return [entry for row, there in offers if row.instance == instance for entry in there]

    @invariant()
    def no_sequence_keeps_a_retired_instance_for_nothing(self) -> None:
        for instance in list(getattr(self, "retired", ())):
            if not self.batcher.has_sequences(instance):
                # What it executes ends, or is lost.
                self.router.remove_instance(instance)
                self.batcher.remove_instance(instance, "it was removed", lost=False)
                del self.retired[instance]

    @precondition(lambda self: self.router.count)
    @rule(data=st.data(), lost=st.booleans(), retried=st.booleans())
    def remove_instance(self, data: st.DataObject, lost: bool, retried: bool) -> None:
        instance = data.draw(st.sampled_from(sorted(self.router)))
        self.retired.pop(instance, None)
        self.router.remove_instance(instance)
        dropped = set(self.batcher._dropped)
        self.batcher.remove_instance(instance, "it was removed", lost=lost)
        running = self.open.pop(instance, []) + self.executing.pop(instance, [])
        again = []
        for entry in running:
            if lost and retried and self.batcher.retry_error(entry, "i0 was lost") is None:
                again.append(entry)
                assert entry.member is not None
                # All that ran there of its sequence may run again.
                sequence = entry.member.sequence
                self.last[sequence] = min(self.last[sequence], entry.request.id)
            else:
                self.batcher.end_entry(entry, self.now_ns)
                self._end(entry)
        if again:
            self.batcher.requeue(again)
            self.inside |= set(again)
        # A START needs no instance's state.
        assert not any(each.member and each.member.start for each in self._newly(dropped))

    @rule()
    def end_sequences(self) -> None:
        """Another scheduler has served the model."""
        executing = [entry for batch in self.executing.values() for entry in batch]
        executing += [entry for batch in self.open.values() for entry in batch]
        dropped = set(self.batcher._dropped)
        self.batcher.end_sequences("it was served elsewhere", [*self.inside, *executing])
        self.over |= set(self.place)
        # A START needs no instance's state.
        assert not any(each.member and each.member.start for each in self._newly(dropped))

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(sorted(self.inside, key=lambda one: one.request.id)))
        dropped = set(self.batcher._dropped)
        assert self.batcher.remove_entry(entry)
        self.batcher.end_entry(entry, self.now_ns)
        self._end(entry)
        assert not self.batcher.remove_entry(entry)
        for other in self._newly(dropped):
            # A START behind it begins the sequence anew.
            assert other.member is not None
            assert not other.member.start or other.request.id < entry.request.id

    def _newly(self, dropped: set[Entry]) -> set[Entry]:
        return set(self.batcher._dropped) - dropped

    @rule(passed_us=st.sampled_from([0, 3, 20, 150]))
    def expire(self, passed_us: int) -> None:
        """Time passes."""
        self.now_ns += passed_us * 1000
        for entry, _ in self.batcher.expire_entries(self.now_ns):
            self.batcher.end_entry(entry, self.now_ns)
            self._end(entry)

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "batcher"):
            dropped = set(self.batcher._dropped)
            assert dropped <= self.inside
            assert self.batcher.pending == len(self.inside) - len(dropped)
            wake_ns = self.batcher.wake_at_ns(self.now_ns)
            assert wake_ns is not None or not dropped

    def teardown(self) -> None:
        """With an instance and the sequences' ends, all that is inside runs or fails."""
        if not hasattr(self, "batcher"):
            return
        self.add_instance()
        for _ in range(1000):
            if not self.inside:
                return
            self.expire(passed_us=20)
            self.dispatch()
            for instance in list(self.executing):
                self._complete(instance)
            for instance in list(self.open):
                self._end_open(instance)
            for which in range(1, 6):
                self._enqueue_one(which, "end", 0, None)
            self.no_sequence_keeps_a_retired_instance_for_nothing()
        raise AssertionError(f"{len(self.inside)} entries never end")

    def _end(self, entry: Entry) -> None:
        assert entry not in self.ended
        self.ended.add(entry)
        self.inside.discard(entry)


Sequences.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSequences = pytest.mark.slow(Sequences.TestCase)
