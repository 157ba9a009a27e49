"""Adaptive admission: when a queue refuses requests, and how long the others wait."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import pytest

from nereid.core.errors import Unavailable
from nereid_scheduler.batching.adaptive_batcher import AdaptiveBatcher
from nereid_scheduler.batching.batcher import Batch, Batcher, make_batcher
from nereid_scheduler.batching.policies.queue_control import AdmissionTarget, QueueControl
from nereid_scheduler.core.requests.entry import EXECUTING
from tests.support.scheduler.samples import entry_of, model_of

_MS = 1_000_000
_TARGET = AdmissionTarget(20 * _MS, 100 * _MS)
_LEVELS = "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"


def batcher_of(text: str, target: AdmissionTarget | None = _TARGET) -> Batcher:
    return make_batcher(model_of(text), admission=target)


# ---- the decision


def batch_of(requests: int) -> Batch:
    return Batch([entry_of() for _ in range(requests)], requests, "full")


def overloaded() -> QueueControl:
    """100 requests leave in 100 ms; 50 are queued for longer than an interval."""
    control = QueueControl(_TARGET)
    assert control.admit(entry_of(), 0, 0, 1, 0)
    for number in range(1, 22):
        control.on_dequeued(batch_of(10), 50, 1, number * 10 * _MS)
    assert not control.admit(entry_of(), 50, 50, 1, 210 * _MS)
    return control


def test_requests_are_refused_beyond_what_drains_in_the_target_time() -> None:
    control = overloaded()
    # 1 for each millisecond: 20 of them.
    assert control.admit(entry_of(), 50, 19, 1, 211 * _MS)
    assert not control.admit(entry_of(), 50, 20, 1, 211 * _MS)


def test_what_instances_take_at_once_is_always_admitted() -> None:
    assert overloaded().admit(entry_of(), 50, 31, 32, 211 * _MS)


def test_an_interval_without_a_refusal_ends_the_overload() -> None:
    control = overloaded()
    assert not control.admit(entry_of(), 50, 20, 1, 250 * _MS)
    assert control.overloaded
    assert control.admit(entry_of(), 50, 50, 1, 351 * _MS)
    assert not control.overloaded


def test_a_queue_of_an_unknown_rate_is_not_too_long() -> None:
    control = QueueControl(_TARGET)
    assert all(
        control.admit(entry_of(), pending, pending, 1, pending * _MS) for pending in range(500)
    )


def test_a_burst_that_drains_within_an_interval_is_admitted() -> None:
    control = QueueControl(_TARGET)
    control.admit(entry_of(), 0, 0, 1, 0)
    for number in range(1, 12):
        control.on_dequeued(batch_of(10), 5, 1, number * 10 * _MS)
    for number in range(90):
        assert control.admit(entry_of(), 5 + number, 5 + number, 1, 111 * _MS)
    for number in range(1, 10):
        control.on_dequeued(batch_of(10), 90 - 10 * number, 1, (111 + 10 * number) * _MS)
    assert control.admit(entry_of(), 19, 19, 1, 212 * _MS)
    assert not control.overloaded


def test_idle_time_does_not_count_for_the_rate() -> None:
    control = QueueControl(_TARGET)
    for number in range(100):
        control.admit(entry_of(), 0, 0, 1, number * 1000 * _MS)
        control.on_dequeued(batch_of(1), 0, 1, number * 1000 * _MS + 1)
    # Were the rate one for each second, a queue of two would be too long.
    assert all(
        control.admit(entry_of(), 2, 2, 1, 100_000 * _MS + number * _MS) for number in range(500)
    )


# ---- the batcher


def test_queues_have_no_control_unless_it_is_wanted() -> None:
    assert not isinstance(batcher_of("", None), AdaptiveBatcher)
    assert isinstance(batcher_of(""), AdaptiveBatcher)
    assert isinstance(batcher_of("max_batch_size: 4 dynamic_batching { }"), AdaptiveBatcher)
    sequences = "max_batch_size: 4 sequence_batching { }"
    assert not isinstance(batcher_of(sequences), AdaptiveBatcher)


@pytest.mark.parametrize("text", ["", "max_batch_size: 4 dynamic_batching { }"])
def test_entries_pass_as_without_control(text: str) -> None:
    batcher = batcher_of(text)
    first, second, third = (entry_of() for _ in range(3))
    for entry in (first, second, third):
        batcher.enqueue(entry, 0)
    assert batcher.remove_entry(second)
    batcher.form_batches(0, 1)
    taken = []
    while (batch := batcher.next_batch(_MS, 1)) is not None:
        taken += batch.entries
    assert taken == [first, third]
    batcher.requeue([first])
    assert batcher.pending == 1
    assert batcher.wake_at_ns(_MS) is None
    assert batcher.expire_entries(_MS) == []
    assert isinstance(batcher, AdaptiveBatcher)
    again = batcher.next_batch(_MS, 1)
    assert again is not None
    assert again.entries == [first]


def test_a_model_s_own_requests_are_not_refused() -> None:
    world = World(batcher_of(""), instances=1)
    # One that is queued before the overload is noticed, and one after that.
    world.offer(0.05, rate=1000)
    first, second = entry_of(), entry_of()
    first.request.caller = second.request.caller = 7
    world.batcher.enqueue(first, world.now_ns)
    world.offer(0.5, rate=1000)
    world.batcher.enqueue(second, world.now_ns)
    with pytest.raises(Unavailable, match="Exceeds maximum queue size"):
        world.batcher.enqueue(entry_of(), world.now_ns)
    world.offer(0.1, rate=1000)
    assert [first.state, second.state] == [EXECUTING] * 2


# ---- in virtual time


@dataclass
class World:
    """Instances that take 10 ms for a batch, and clients who do not wait for responses.

    waits_ms: of served requests, by level. served, refused: counts by level.
    """

    batcher: Batcher
    instances: int
    now_ns: int = 0
    free: int = 0
    waits_ms: dict[int, list[float]] = field(default_factory=lambda: {1: [], 2: []})
    refused: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    random: random.Random = field(default_factory=lambda: random.Random(1))
    events: list[tuple[int, int, int]] = field(default_factory=list)
    numbers: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.free = self.instances

    def offer(self, seconds: float, rate: float, urgent: float = 0.0) -> None:
        """Requests at random times; urgent: the part of them that is of the first level."""
        at_ns, end_ns = self.now_ns, self.now_ns + int(seconds * 1e9)
        while (at_ns := at_ns + int(self.random.expovariate(rate) * 1e9)) < end_ns:
            level = 1 if self.random.random() < urgent else 2
            heappush(self.events, (at_ns, next(self.numbers), level))
        while self.events and self.events[0][0] < end_ns:
            self.now_ns, _, level = heappop(self.events)
            if level:
                self._arrive(level)
            else:
                self.free += 1
            self.expire()
            self._dispatch()
        self.now_ns = end_ns

    def served(self, level: int) -> int:
        return len(self.waits_ms[level])

    def clear(self) -> None:
        self.waits_ms = {1: [], 2: []}
        self.refused = {1: 0, 2: 0}

    def _arrive(self, level: int) -> None:
        try:
            self.batcher.enqueue(entry_of(level=level), self.now_ns)
        except Unavailable:
            self.refused[level] += 1

    def expire(self) -> None:
        for entry, error in self.batcher.expire_entries(self.now_ns):
            assert isinstance(error, Unavailable)
            self.refused[entry.level] += 1

    def _dispatch(self) -> None:
        while self.free:
            batch = self.batcher.next_batch(self.now_ns, self.instances)
            if batch is None:
                break
            self.free -= 1
            heappush(self.events, (self.now_ns + 10 * _MS, next(self.numbers), 0))
            for entry in batch.entries:
                self.waits_ms[entry.level].append((self.now_ns - entry.enqueued_ns) / _MS)
        else:
            self.batcher.form_batches(self.now_ns, self.instances)


def p99(times: list[float]) -> float:
    return sorted(times)[int(0.99 * len(times))]


# By instances and batches: what is served in a second.
@pytest.mark.parametrize(
    ("text", "instances", "capacity"),
    [
        ("", 1, 100),
        ("", 4, 400),
        ("max_batch_size: 4 dynamic_batching { }", 1, 400),
        ("max_batch_size: 4 dynamic_batching { }", 2, 800),
        ("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 2000 }", 1, 400),
    ],
    ids=["single", "instances", "batches", "both", "delay"],
)
def test_ten_times_the_capacity_is_served_at_capacity_and_in_time(
    text: str, instances: int, capacity: int
) -> None:
    world = World(batcher_of(text), instances)
    world.offer(0.5, 0.5 * capacity)
    assert world.refused == {1: 0, 2: 0}
    # It is noticed when there is a rate, and the queue too long for an interval.
    world.offer(0.4, 10 * capacity)
    world.clear()
    world.offer(1.5, 10 * capacity)
    assert world.served(2) >= 0.97 * 1.5 * capacity
    # Twice the target, or the batch that is queued and the one that executes.
    assert p99(world.waits_ms[2]) <= 40
    # Recovered: nothing is refused any more, and nothing waits for long.
    world.offer(0.3, 0.5 * capacity)
    world.clear()
    world.offer(1.0, 0.5 * capacity)
    assert world.refused == {1: 0, 2: 0}
    assert p99(world.waits_ms[2]) <= 100


def test_less_urgent_requests_are_refused_first() -> None:
    world = World(batcher_of(f"max_batch_size: 4 {_LEVELS}"), instances=2)
    capacity, seconds = 800, 1.5
    # Half of the capacity is urgent, beside 9.5 times the capacity that is not.
    world.offer(0.4, 10 * capacity, urgent=0.05)
    world.clear()
    world.offer(seconds, 10 * capacity, urgent=0.05)
    assert world.refused[1] == 0
    assert p99(world.waits_ms[1]) <= 20
    assert world.served(1) + world.served(2) >= 0.97 * seconds * capacity
    # Nobody is admitted to starve.
    assert p99(world.waits_ms[2]) <= 100


def test_urgent_requests_are_refused_where_they_alone_are_too_many() -> None:
    world = World(batcher_of(f"max_batch_size: 4 {_LEVELS}"), instances=1)
    world.offer(0.4, 4000, urgent=0.9)
    world.clear()
    world.offer(1.5, 4000, urgent=0.9)
    assert world.served(1) >= 0.95 * 1.5 * 400
    assert p99(world.waits_ms[1]) <= 40
    assert world.refused[1] > 0
