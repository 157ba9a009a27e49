"""The batcher against a literal reference, in sequences of events that hypothesis makes."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from nereid.core.errors import DeadlineExceeded, Unavailable
from nereid_scheduler.batching.batcher import make_batcher
from nereid_scheduler.core.requests.entry import Batch, Entry, RequestState
from tests.support.scheduler.reference_batcher import ReferenceBatcher
from tests.support.scheduler.samples import entry_of, model_of

LEVELS = 3
# Size, key, level, deadline from now in microseconds.
ARRIVALS = st.tuples(
    st.sampled_from([1, 1, 1, 2, 3]),
    st.sampled_from("aaaaab"),
    st.integers(1, LEVELS),
    st.sampled_from([None, None, None, None, 3, 30]),
)


@st.composite
def batching_texts(draw: st.DrawFn) -> str:
    max_size = draw(st.sampled_from([1, 4, 8, 8]))
    preferred = draw(st.sets(st.integers(1, max_size), max_size=2))
    lines = [f"preferred_batch_size: {size}" for size in sorted(preferred) or [max_size]]
    lines.append(f"max_queue_delay_microseconds: {draw(st.sampled_from([0, 5, 20]))}")
    if draw(st.booleans()):
        policy = (
            f"{{ default_timeout_microseconds: {draw(st.sampled_from([0, 10]))} "
            f"timeout_action: {draw(st.sampled_from(['REJECT', 'DELAY']))} "
            f"max_queue_size: {draw(st.sampled_from([0, 3]))} }}"
        )
        lines.append(f"default_queue_policy {policy}")
        if draw(st.booleans()):
            lines.append(f"priority_levels: {LEVELS} default_priority_level: 2")
            lines.append(
                "priority_queue_policy { key: 1 value { "
                "timeout_action: DELAY default_timeout_microseconds: 7 } }"
            )
    return f"max_batch_size: {max_size} dynamic_batching {{ {' '.join(lines)} }}"


class Agreement(RuleBasedStateMachine):
    """Every entry leaves exactly once, from both batchers at the same time in the same batch."""

    @initialize(text=batching_texts(), instances=st.integers(1, 2))
    def start(self, text: str, instances: int) -> None:
        self.config = model_of(text)
        assert self.config.batching is not None
        self.levels = self.config.batching.priority_levels or 1
        self.batcher = make_batcher(self.config)
        self.reference = ReferenceBatcher(self.config)
        self.instances = instances
        self.now_ns = 1_000_000
        self.executing: list[Batch] = []
        self.inside: set[Entry] = set()
        self.departed: set[Entry] = set()

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=8), forms=st.booleans())
    def enqueue(self, arrivals: list[tuple[int, str, int, int | None]], forms: bool) -> None:
        for arrival in arrivals:
            self._enqueue_entry(*arrival)
        if forms:
            self.form_batches()

    def _enqueue_entry(self, size: int, key: str, level: int, deadline_us: int | None) -> None:
        entry = entry_of(
            min(size, self.config.max_batch_size), key=key, level=min(level, self.levels)
        )
        timeout_us = self.reference.policy(entry.level).default_timeout_us
        entry.timeout_ns = self.now_ns + timeout_us * 1000 if timeout_us else None
        entry.deadline_ns = self.now_ns + deadline_us * 1000 if deadline_us else None
        try:
            self.batcher.enqueue(entry, self.now_ns)
        except Unavailable:
            assert not self.reference.enqueue(entry)
        else:
            assert self.reference.enqueue(entry)
            self.inside.add(entry)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def remove_entry(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(sorted(self.inside, key=lambda one: one.request.id)))
        assert self.batcher.remove_entry(entry)
        assert self.reference.remove_entry(entry)
        self._depart(entry)
        assert not self.batcher.remove_entry(entry)

    @rule()
    def next_batch(self) -> None:
        self._next_batch()

    def _next_batch(self) -> bool:
        expected = self.reference.next_batch(self.now_ns, self.instances)
        batch = self.batcher.next_batch(self.now_ns, self.instances)
        if batch is None:
            assert not expected
            return False
        assert batch.entries == expected
        assert batch.size == sum(entry.valid.batch_size for entry in expected)
        assert batch.size <= self.config.max_batch_size
        assert len({entry.key for entry in expected}) == 1
        assert {entry.state for entry in expected} == {RequestState.EXECUTING}
        self.executing.append(batch)
        self.inside -= set(expected)
        return True

    @rule()
    def form_batches(self) -> None:
        self.batcher.form_batches(self.now_ns, self.instances)
        self.reference.form_batches(self.now_ns, self.instances)

    @precondition(lambda self: self.executing)
    @rule(data=st.data(), lost=st.booleans())
    def finish(self, data: st.DataObject, lost: bool) -> None:
        batch = self.executing.pop(data.draw(st.integers(0, len(self.executing) - 1)))
        for entry in batch.entries:
            assert not self.batcher.remove_entry(entry)
        if lost:
            self.batcher.requeue(batch.entries)
            self.reference.requeue(list(batch.entries))
            self.inside |= set(batch.entries)
        else:
            for entry in batch.entries:
                self._depart(entry)

    @rule(passed_us=st.sampled_from([1, 4, 10, 40]))
    def expire_entries(self, passed_us: int) -> None:
        """Time passes."""
        self.now_ns += passed_us * 1000
        expected = self.reference.expire_entries(self.now_ns)
        kinds = {"deadline": DeadlineExceeded, "timeout": Unavailable}
        ended = self.batcher.expire_entries(self.now_ns)
        assert {entry: type(error) for entry, error in ended} == {
            entry: kinds[kind] for entry, kind in expected
        }
        assert len(ended) == len(expected)
        for entry, _ in ended:
            self._depart(entry)

    @rule()
    def wait(self) -> None:
        """With idle instances, the batcher asks to be called when an entry is due."""
        self.expire_entries(passed_us=1)
        while self._next_batch():
            pass
        wake_ns = self.batcher.wake_at_ns(self.now_ns)
        for entry in self.inside:
            for at_ns in (entry.timeout_ns, entry.deadline_ns):
                if at_ns is not None:
                    assert wake_ns is not None
                    assert wake_ns <= at_ns
        closes_ns = self.reference.closes_ns()
        if closes_ns is not None:
            assert wake_ns is not None
            assert self.now_ns < wake_ns <= closes_ns

    @invariant()
    def same_entries_are_inside(self) -> None:
        if hasattr(self, "batcher"):
            assert self.batcher.pending == len(self.inside)
            assert set(self.reference.held()) == self.inside

    def teardown(self) -> None:
        """All entries that are still inside leave once."""
        if not hasattr(self, "batcher"):
            return
        self.now_ns += 1_000_000
        while self.batcher.pending:
            before = self.batcher.pending
            for entry, _ in self.batcher.expire_entries(self.now_ns):
                self._depart(entry)
            batch = self.batcher.next_batch(self.now_ns, self.instances)
            for entry in batch.entries if batch else ():
                self._depart(entry)
            assert self.batcher.pending < before
        assert not self.inside

    def _depart(self, entry: Entry) -> None:
        assert entry not in self.departed
        self.departed.add(entry)
        self.inside.discard(entry)


Agreement.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestAgreement = pytest.mark.slow(Agreement.TestCase)
