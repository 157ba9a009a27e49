"""What holds of the default scheduler and the dynamic batcher whatever happens, stated as rules.

test_batcher_agreement compares the dynamic batcher with a reference that is made like it; this
knows only what a caller may rely on.
"""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nereid.core.errors import DeadlineExceeded, Unavailable
from nereid.model_config import QueuePolicy
from nereid.services.scheduler.batching.batcher import Batch, make_batcher
from nereid.services.scheduler.requests.entry import Entry
from tests.support.scheduler.samples import entry_of, model_of

POLICY = (
    "default_queue_policy { default_timeout_microseconds: %s timeout_action: %s"
    " max_queue_size: %s }"
)
PRIORITIES = "priority_levels: 3 default_priority_level: 2"
SCHEDULERS = (
    "",
    "max_batch_size: 4",
    "dynamic_batching { }",
    "max_batch_size: 4 dynamic_batching { }",
    *(
        f"max_batch_size: 4 dynamic_batching {{ {each} }}"
        for each in (
            "preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 20",
            "preferred_batch_size: 2 max_queue_delay_microseconds: 5",
            f"max_queue_delay_microseconds: 20 {POLICY % (12, 'REJECT', 5)}",
            PRIORITIES,
            " ".join(
                (
                    PRIORITIES,
                    "preferred_batch_size: 3 max_queue_delay_microseconds: 10",
                    POLICY % (10, "DELAY", 0),
                    "priority_queue_policy { key: 1 value { max_queue_size: 2 } }",
                )
            ),
        )
    ),
)
# Size, key, level, deadline in microseconds from now.
ARRIVALS = st.tuples(
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from("aaab"),
    st.sampled_from([1, 2, 2, 3]),
    st.sampled_from([None, None, None, 8, 40]),
)


class Invariants(RuleBasedStateMachine):
    """The batcher's owner, and the order in which its entries should leave."""

    @initialize(text=st.sampled_from(SCHEDULERS), instances=st.integers(1, 3))
    def start(self, text: str, instances: int) -> None:
        config = model_of(text)
        self.max_size = max(1, config.max_batch_size)
        self.batching = config.batching
        self.batcher = make_batcher(config)
        self.instances = instances
        self.now_ns = 1_000_000
        # The entries inside, in the order in which each level should be served.
        self.fresh: dict[int, list[Entry]] = {}
        self.delayed: dict[int, list[Entry]] = {}
        self.executing: list[Batch] = []
        self.ended: set[Entry] = set()
        # Whether a batch that was complete may have lost a member since.
        self.touched = False

    # ---- events

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=6), forms=st.booleans())
    def enqueue(self, arrivals: list[tuple[int, str, int, int | None]], forms: bool) -> None:
        self.touched = self.touched and bool(self._inside())
        levels = self.batching.priority_levels if self.batching is not None else 0
        for size, key, level, deadline_us in arrivals:
            entry = entry_of(min(size, self.max_size), key=key, level=level if levels else 1)
            timeout_us = self._policy(entry.level).default_timeout_us
            entry.timeout_ns = self.now_ns + timeout_us * 1000 if timeout_us else None
            entry.deadline_ns = self.now_ns + deadline_us * 1000 if deadline_us else None
            bound = self._policy(entry.level).max_queue_size
            waiting = len(self._level(entry.level))
            try:
                self.batcher.enqueue(entry, self.now_ns)
            except Unavailable:
                assert bound
                assert waiting >= bound
            else:
                assert not bound or waiting < bound
                self.fresh.setdefault(entry.level, []).append(entry)
        if forms:
            self.batcher.form_batches(self.now_ns, self.instances)

    @precondition(lambda self: self._inside())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self._inside()))
        assert self.batcher.remove_entry(entry)
        self._end(entry)
        assert not self.batcher.remove_entry(entry)

    # The last one is a machine that slept.
    @rule(passed_us=st.sampled_from([1, 4, 10, 25, 10_000_000]))
    def expire(self, passed_us: int) -> None:
        self.now_ns += passed_us * 1000
        for entry, error in self.batcher.expire_entries(self.now_ns):
            due = [each for each in (entry.deadline_ns, entry.timeout_ns) if each is not None]
            assert min(due) <= self.now_ns
            assert isinstance(error, DeadlineExceeded | Unavailable)
            self._end(entry)
        for level, entries in self.fresh.items():
            if self._policy(level).timeout_action == "DELAY":
                # In the order of their timeouts, which is that of their arrival.
                passed = [each for each in entries if each.timeout_ns is None]
                if self._policy(level).default_timeout_us:
                    passed = [each for each in passed if each.retries == 0]
                    self.delayed.setdefault(level, []).extend(passed)
                    self.fresh[level] = [each for each in entries if each not in passed]
        for entry in self._inside():
            for at_ns in (entry.deadline_ns, entry.timeout_ns):
                assert at_ns is None or at_ns > self.now_ns

    @rule()
    def dispatch(self) -> None:
        while self._dispatch_one():
            pass

    def _dispatch_one(self) -> bool:
        before = self._inside()
        batch = self.batcher.next_batch(self.now_ns, self.instances)
        if batch is None:
            self._check_wait(before)
            return False
        entries = batch.entries
        assert entries
        assert batch.size == sum(each.valid.batch_size for each in entries)
        assert batch.size <= self.max_size
        assert len({each.key for each in entries}) == 1
        for entry in entries:
            assert entry not in self.ended
            assert entry.deadline_ns is None or entry.deadline_ns > self.now_ns
            assert entry.timeout_ns is None or entry.timeout_ns > self.now_ns
        # From the front, more urgent levels first.
        assert entries == before[: len(entries)]
        self._check_size(batch, before[len(entries) :])
        for entry in entries:
            self._leave(entry)
        self.executing.append(batch)
        return True

    @precondition(lambda self: self.executing)
    @rule(data=st.data(), lost=st.booleans())
    def complete(self, data: st.DataObject, lost: bool) -> None:
        batch = self.executing.pop(data.draw(st.integers(0, len(self.executing) - 1)))
        if not lost:
            self.ended.update(batch.entries)
            return
        for entry in batch.entries:
            entry.retries += 1
            # Met once.
            entry.timeout_ns = None
        self.touched = True
        self.batcher.requeue(batch.entries)
        for entry in reversed(batch.entries):
            self.fresh.setdefault(entry.level, []).insert(0, entry)
        # The owner looks for what has expired before it asks for a batch.
        self.expire(passed_us=0)

    # ---- what must hold

    def _check_size(self, batch: Batch, rest: list[Entry]) -> None:
        """Why the batch could be closed."""
        if self.batching is None:
            assert len(batch.entries) == 1
            return
        if not self.batching.max_queue_delay_us:
            return
        oldest_ns = min(each.enqueued_ns for each in batch.entries)
        waited = self.now_ns - oldest_ns >= self.batching.max_queue_delay_us * 1000
        following = rest[0] if rest else None
        # A batch ends before what does not fit, and before what passes the largest preferred size.
        sealed = following is not None and (
            following.key != batch.entries[0].key
            or batch.size + following.valid.batch_size > max(self.batching.preferred_batch_sizes)
        )
        # A batch that was complete grows until an instance is free.
        complete = batch.size >= min(self.batching.preferred_batch_sizes)
        assert waited or sealed or complete or self.touched, batch.reason

    def _check_wait(self, inside: list[Entry]) -> None:
        """Why there was none."""
        if not inside:
            return
        assert self.batching is not None
        delay_ns = self.batching.max_queue_delay_us * 1000
        assert delay_ns
        first = inside[0]
        alike = takewhile(lambda each: each.key == first.key, inside)
        joined = sum(each.valid.batch_size for each in alike)
        assert joined < max(self.batching.preferred_batch_sizes)
        assert all(self.now_ns - each.enqueued_ns < delay_ns for each in inside)
        wake_ns = self.batcher.wake_at_ns(self.now_ns)
        assert wake_ns is not None
        assert wake_ns <= max(each.enqueued_ns for each in inside) + delay_ns

    @invariant()
    def is_woken_in_time(self) -> None:
        if hasattr(self, "batcher"):
            assert self.batcher.pending == len(self._inside())
            wake_ns = self.batcher.wake_at_ns(self.now_ns)
            for entry in self._inside():
                for at_ns in (entry.deadline_ns, entry.timeout_ns):
                    assert at_ns is None or (wake_ns is not None and wake_ns <= at_ns)

    def teardown(self) -> None:
        """Every entry ends: an hour later all that is left runs."""
        if not hasattr(self, "batcher"):
            return
        self.expire(passed_us=3_600_000_000)
        self.dispatch()
        assert not self._inside()

    # ---- the model

    def _policy(self, level: int) -> QueuePolicy:
        if self.batching is None:
            return QueuePolicy()
        return self.batching.priority_queue_policies.get(level, self.batching.default_queue_policy)

    def _level(self, level: int) -> list[Entry]:
        return self.fresh.get(level, []) + self.delayed.get(level, [])

    def _inside(self) -> list[Entry]:
        return [entry for level in (1, 2, 3) for entry in self._level(level)]

    def _leave(self, entry: Entry) -> None:
        assert entry in self._level(entry.level)
        for places in (self.fresh, self.delayed):
            if entry in places.get(entry.level, ()):
                places[entry.level].remove(entry)

    def _end(self, entry: Entry) -> None:
        assert entry not in self.ended
        self.ended.add(entry)
        self.touched = True
        self._leave(entry)


Invariants.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestInvariants = pytest.mark.slow(Invariants.TestCase)
