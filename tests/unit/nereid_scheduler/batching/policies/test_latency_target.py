"""Batching that holds a target: what is decided, and loads that change in virtual time."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import pytest

from nereid.core.errors import Unavailable
from nereid.model_config import ModelConfig
from nereid_scheduler.batching.batcher import Batch, Batcher, LatencyTarget, make_batcher, target_of
from nereid_scheduler.batching.times.batch_times import BatchTimes
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import Entry
from tests.support.scheduler.batching import execution
from tests.support.scheduler.samples import entry_of, model_of

_MS = 1_000_000
# Sizes and milliseconds; others are on their line.
_SMALL = (1, 11), (8, 18)
_DYNAMIC = "max_batch_size: 64 dynamic_batching { }"


def text_of(target_ms: float, batching: str = _DYNAMIC) -> str:
    value = f'value {{ string_value: "{int(target_ms * 1000)}" }}'
    return f'{batching} parameters {{ key: "target_p99_us" {value} }}'


def batch_of(size: int, requests: int) -> Batch:
    return Batch([entry_of(size // requests) for _ in range(requests)], size, "full")


@dataclass
class Instances:
    """A target that learns from batches that are executed one after the other."""

    target: LatencyTarget
    times: BatchTimes
    count: int = 1
    now_ns: int = 0

    def execute(
        self,
        size: int,
        milliseconds: float,
        times: int = 1,
        *,
        requests: int = 0,
        missed: bool = False,
    ) -> bool:
        """Whether a batch changed what is reachable. missed: after more than a second."""
        changed = False
        for _ in range(times):
            batch = self.send(size, requests)
            started_ns = self.now_ns
            for entry in batch.entries:
                entry.received_ns = started_ns - 1000 * _MS * missed
            self.now_ns += int(milliseconds * _MS)
            changed |= self.end(batch, self.now_ns - started_ns)
        return changed

    def end(self, batch: Batch, taken_ns: int) -> bool:
        done = execution(taken_ns, finished_ns=self.now_ns)
        self.times.record("i", batch, done, waited=False)
        return self.target.on_executed(batch, self.now_ns)

    def send(self, size: int, requests: int = 0) -> Batch:
        batch = batch_of(size, requests or size)
        for entry in batch.entries:
            self.target.shares.add(entry)
        self.target.on_dequeued(batch, 0, self.count, self.now_ns)
        return batch

    def queue(self, requests: int, after_ms: float = 0.0, rows: int = 1) -> int:
        """How many of so many requests that come now, and leave the queue then, are admitted."""
        now_ns = self.now_ns + int(after_ms * _MS)
        target, admitted = self.target, list[Entry]()
        for _ in range(requests):
            entry, ahead = entry_of(rows), len(admitted)
            if target.admit(entry, ahead, ahead, self.count, now_ns):
                target.shares.add(entry)
                admitted.append(entry)
        for entry in admitted:
            target.shares.remove(entry)
        return len(admitted)


def instances_of(target_ms: float, count: int = 1, *sizes: tuple[int, float]) -> Instances:
    """By default 10 ms for a batch, and 1 ms for each of its rows."""
    times = BatchTimes(by_rows=True)
    it = Instances(LatencyTarget(int(target_ms * _MS), 64, times.rows), times, count)
    for size, milliseconds in sizes or ((1, 11), (8, 18), (16, 26), (32, 42)):
        it.execute(size, milliseconds, 20)
    return it


class TestLargestBatch:
    def test_until_something_is_known_each_request_is_executed_alone_and_none_is_refused(
        self,
    ) -> None:
        fresh = LatencyTarget(50 * _MS, 64, BatchTimes(by_rows=True).rows)
        assert (fresh.plan.size, fresh.plan.execution_ns, fresh.max_size) == (1, 0, 1)
        assert all(fresh.admit(entry_of(), number, number, 1, 0) for number in range(1000))

    def test_its_time_fits_twice_and_with_more_for_bursts(self) -> None:
        # 2 * (10 + 15) is the target; with half more than that serves, a few rows more do better.
        it = instances_of(50)
        assert 15 <= it.target.plan.size <= 20
        assert it.target.max_size == it.target.plan.size

    def test_with_several_instances_it_may_take_longer(self) -> None:
        assert instances_of(50, 4).target.plan.size > instances_of(50, 1).target.plan.size

    def test_where_larger_batches_are_no_faster_the_smallest_is_enough(self) -> None:
        it = instances_of(50, 1, (1, 2), (4, 8), (8, 16))
        assert it.target.plan.size == 1

    def test_unknown_sizes_are_tried_one_doubling_after_the_other(self) -> None:
        it = instances_of(50, 1, (1, 11))
        sizes = [it.target.plan.size]
        for _ in range(4):
            size = sizes[-1]
            it.execute(size, 10 + size, 4)
            sizes.append(it.target.plan.size)
        assert sizes == [2, 4, 8, 16, sizes[-1]]
        assert 15 <= sizes[-1] <= 20

    def test_under_a_great_load_it_leaves_time_for_few_and_serves_more(self) -> None:
        it = instances_of(50)
        before = it.target.plan.size
        for _ in range(30):
            it.queue(300)
            it.execute(before, 10 + before)
        assert it.target.plan.size > before

    def test_rows_count_where_requests_have_several(self) -> None:
        it = instances_of(60)
        it.send(16)
        assert it.queue(100, after_ms=20) > 16
        it = instances_of(60)
        it.execute(16, 26, 100, requests=2)
        it.send(16, 2)
        assert 2 <= it.queue(100, after_ms=20, rows=8) <= 4
        # Those of another client that sends small ones.
        assert it.queue(100, after_ms=20) > 16


class TestDelay:
    def test_nothing_waits_while_nothing_is_refused(self) -> None:
        it = instances_of(25, 2)
        assert (it.target.plan.delay_ns, it.target.delay_ns) == (0, 0)

    def test_refusals_have_batches_wait_for_what_the_target_leaves(self) -> None:
        it = instances_of(25, 2)
        for _ in range(40):
            it.queue(30)
            it.execute(4, 14)
        plan = it.target.plan
        assert plan.delay_ns == it.target.delay_ns > 0
        assert plan.delay_ns + plan.execution_ns <= 25 * _MS
        # Without refusals they wait for less and less.
        it.execute(4, 14, 500)
        assert it.target.plan.delay_ns == 0

    def test_a_single_instance_executes_what_it_has(self) -> None:
        it = instances_of(50)
        for _ in range(40):
            it.queue(300)
            it.execute(16, 26)
        assert it.target.plan.delay_ns == 0

    def test_unless_what_comes_meanwhile_would_miss_it(self) -> None:
        it = instances_of(15, 1, (1, 11), (4, 14))
        for _ in range(60):
            batch = it.send(1)
            it.queue(5)
            it.now_ns += 11 * _MS
            it.end(batch, 11 * _MS)
        plan = it.target.plan
        assert plan.size > 1
        assert plan.delay_ns > 0


class TestAdmission:
    def test_what_a_free_instance_takes_is_admitted(self) -> None:
        it = instances_of(50)
        assert it.queue(1000) >= it.target.plan.size

    def test_who_would_wait_for_too_long_is_refused(self) -> None:
        it = instances_of(30, 1, *_SMALL)
        it.send(16)
        # 26 ms until the instance is free, and 11 at least to execute.
        assert it.queue(1) == 0
        assert it.queue(1, after_ms=12) == 1

    def test_a_batch_ends_where_its_first_request_would_miss_it(self) -> None:
        it = instances_of(50)
        it.send(16)
        # They can be done in 24 ms, with 13 others.
        assert 10 <= it.queue(100) <= 14

    def test_others_come_behind_them_if_there_is_time(self) -> None:
        it = instances_of(200, 1, (1, 2), (4, 8), (8, 16))
        it.send(1)
        # One after the other, 2 ms each.
        assert 75 <= it.queue(200) <= 100

    def test_the_instance_that_ends_first_counts(self) -> None:
        it = instances_of(35, 2, *_SMALL)
        it.send(16)
        it.now_ns += 20 * _MS
        it.send(16)
        assert it.queue(1) == 1

    def test_a_batch_that_is_overdue_takes_as_long_again(self) -> None:
        it = instances_of(50)
        it.send(1)
        assert it.queue(1, after_ms=12) == 1
        assert it.queue(1, after_ms=60) == 0

    def test_an_instance_that_hangs_holds_nobody_up(self) -> None:
        it = instances_of(50, 2)
        it.send(16)
        it.now_ns += 500 * _MS
        it.send(16)
        assert it.queue(1, after_ms=10) == 1

    def test_batches_that_wait_at_instances_come_first(self) -> None:
        it = instances_of(60)
        it.send(16)
        it.send(16)
        assert it.queue(1) == 0
        assert it.queue(1, after_ms=5) == 1

    def test_a_lost_batch_is_in_nobody_s_way(self) -> None:
        it = instances_of(30, 1, *_SMALL)
        batch = it.send(16)
        it.target.forget(batch)
        it.target.forget(batch)
        assert it.queue(1) == 1

    def test_the_refusal_names_the_target(self) -> None:
        error = instances_of(30).target.refusal(entry_of())
        assert isinstance(error, Unavailable)
        assert error.message == (
            "[request id: <id_unknown>] Request cannot be served within the model's target_p99_us"
            " of 30000"
        )


class TestOutcomes:
    def test_requests_that_missed_it_leave_less_time_to_others_for_a_while(self) -> None:
        it = instances_of(100)
        it.execute(16, 26, 3, missed=True)
        assert it.target.missed == 48
        assert it.target.held_ns < 90 * _MS
        it.execute(16, 26, 1000)
        assert it.target.held_ns == 100 * _MS

    def test_half_of_the_target_is_always_left(self) -> None:
        it = instances_of(100)
        it.execute(16, 26, 100, missed=True)
        assert it.target.held_ns == 50 * _MS

    def test_what_missed_it_as_the_model_became_slower_counts_no_more(self) -> None:
        it = instances_of(200)
        it.execute(16, 52, 7, missed=True)
        assert it.target.held_ns < 200 * _MS
        it.execute(16, 52, missed=True)
        assert it.target.held_ns == 200 * _MS

    def test_then_the_queue_is_cut_to_what_can_be_in_time(self) -> None:
        it = instances_of(200)
        batch = it.send(16)
        admitted = it.queue(100)
        assert it.target.excess(admitted, 1, it.now_ns) == 0
        it.target.forget(batch)
        it.execute(16, 52, 8)
        it.send(16)
        excess = it.target.excess(admitted, 1, it.now_ns)
        assert 0 < excess < admitted
        assert it.target.excess(admitted, 1, it.now_ns) == 0

    def test_an_executed_batch_s_plan_is_known(self) -> None:
        it = instances_of(50)
        plan, batch = it.target.plan, it.send(16)
        it.execute(16, 60, 20)
        assert it.target.plan != plan
        it.end(batch, 26 * _MS)
        assert it.target.executed_plan == plan


class TestUnreachable:
    def test_a_target_below_one_request_s_time_is_found_and_the_least_held(self) -> None:
        it = instances_of(10, 1, (2, 12))
        # Of one row nothing is known yet.
        assert it.target.reachable
        assert it.execute(1, 11, 20)
        assert not it.target.reachable
        assert it.target.least_ns == 11 * _MS
        assert 22 * _MS <= it.target.held_ns < 30 * _MS
        # One executes, one waits.
        it.send(1)
        assert 1 <= it.queue(10) <= 3

    def test_it_can_be_held_again(self) -> None:
        it = instances_of(10, 1, (1, 11))
        it.execute(1, 11, 20)
        assert not it.execute(1, 9.8, 8)
        assert it.execute(1, 5, 20)
        assert it.target.reachable
        assert it.target.held_ns == 10 * _MS

    def test_where_only_a_free_instance_is_in_time_nothing_queues(self) -> None:
        it = instances_of(12, 1, (1, 11.9))
        assert it.target.reachable
        assert it.queue(1) == 1
        it.send(1)
        assert it.queue(10) == 0


class TestBatcher:
    def test_only_models_that_ask_have_a_target(self) -> None:
        assert target_of(make_batcher(model_of(_DYNAMIC))) is None
        assert target_of(make_batcher(model_of(text_of(0)))) is None
        assert target_of(make_batcher(model_of(text_of(50)))) is not None
        assert target_of(make_batcher(model_of(text_of(50, "")))) is not None

    @pytest.mark.parametrize(
        "text",
        [
            "max_batch_size: 4 sequence_batching { }",
            "max_batch_size: 4 dynamic_batching { } model_transaction_policy { decoupled: true }",
        ],
    )
    def test_others_cannot(self, text: str) -> None:
        assert target_of(make_batcher(model_of(text_of(50, text)))) is None

    def test_configured_sizes_and_delays_give_way(self) -> None:
        batching = "preferred_batch_size: 3 max_queue_delay_microseconds: 900000"
        text = f"max_batch_size: 64 dynamic_batching {{ {batching} }}"
        batcher = make_batcher(model_of(text_of(50, text)))
        for _ in range(5):
            batcher.enqueue(entry_of(), 0)
        batch = batcher.next_batch(0, 1)
        assert batch is not None
        # Nothing is known yet.
        assert batch.size == 1

    def test_a_request_that_comes_alone_counts(self) -> None:
        router: Router[object] = Router()
        for _ in range(2):
            router.add_instance(object())
        times = BatchTimes(by_rows=True)
        batcher = make_batcher(model_of(text_of(50)), router, times)
        target = target_of(batcher)
        assert target is not None

        def batch_at(now_ms: int) -> Batch:
            batcher.enqueue(entry_of(), now_ms * _MS)
            batch = batcher.next_batch(now_ms * _MS, 2)
            assert batch is not None
            return batch

        for number in range(40):
            batch = batch_at(number * 100)
            done = execution(30 * _MS, finished_ns=(number * 100 + 30) * _MS)
            times.record("i", batch, done, waited=False)
            target.on_executed(batch, done.finished_ns)
        assert target.plan.execution_ns >= 30 * _MS
        # One of the two instances is still free.
        batch_at(5000)
        batcher.enqueue(entry_of(), 5000 * _MS)


# ---- in virtual time

# A request that comes, an execution that ends, or a time to look again.
Event = Entry | tuple[Batch, int] | str | None


@dataclass
class World:
    """Instances that take 10 ms for a batch and 1 ms for each row, by a factor, within a few per
    cent; clients who do not wait for responses.

    latencies_ms: of what was sent since the last clear(); refused: how many.
    """

    batcher: Batcher
    times: BatchTimes
    instances: int = 2
    factor: float = 1.0
    now_ns: int = 0
    sizes: list[int] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    refused: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(1))
    numbers: count[int] = field(default_factory=count)
    events: list[tuple[int, int, Event]] = field(default_factory=list)
    refused_of: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.free = self.instances
        self.target = target_of(self.batcher)

    def offer(self, seconds: float, rate: float) -> None:
        at_ns, end_ns = float(self.now_ns), self.now_ns + int(seconds * 1e9)
        while (at_ns := at_ns + self.random.expovariate(rate) * 1e9) < end_ns:
            self._push(int(at_ns), "request")
        while self.events and self.events[0][0] < end_ns:
            self.now_ns, _, event = heappop(self.events)
            if event == "request":
                self._arrive(entry_of())
            elif isinstance(event, Entry):
                self._arrive(event)
            elif isinstance(event, tuple):
                self._end(*event)
            self._dispatch()
        self.now_ns = end_ns

    def offer_from(self, seconds: float, **clients: tuple[float, int]) -> dict[str, float]:
        """Let clients send so many requests a second of so many rows: what part is refused."""
        end_ns, offered = self.now_ns + int(seconds * 1e9), dict.fromkeys(clients, 0)
        for name, (rate, rows) in clients.items():
            at_ns = float(self.now_ns)
            while (at_ns := at_ns + self.random.expovariate(rate) * 1e9) < end_ns:
                entry = entry_of(rows)
                entry.request.sequence_owner = name
                self._push(int(at_ns), entry)
                offered[name] += 1
        self.refused_of.clear()
        self.offer(seconds, 1e-9)
        return {name: self.refused_of[name] / offered[name] for name in clients}

    def enqueue_from(self, client: str) -> Entry:
        entry = entry_of()
        entry.request.sequence_owner = client
        self.batcher.enqueue(entry, self.now_ns)
        return entry

    def measure(self, seconds: float, rate: float) -> tuple[float, float]:
        """After half a second to settle: p99, and goodput of all that was offered."""
        self.offer(0.5, rate)
        self.latencies_ms, self.refused, self.sizes = [], 0, []
        self.offer(seconds, rate)
        return sorted(self.latencies_ms)[int(0.99 * len(self.latencies_ms))], len(
            self.latencies_ms
        ) / (len(self.latencies_ms) + self.refused)

    def _push(self, at_ns: int, event: Event) -> None:
        heappush(self.events, (at_ns, next(self.numbers), event))

    def _arrive(self, entry: Entry) -> None:
        entry.received_ns = self.now_ns
        try:
            self.batcher.enqueue(entry, self.now_ns)
        except Unavailable:
            self._refuse(entry)

    def _refuse(self, entry: Entry) -> None:
        self.refused += 1
        self.refused_of[entry.request.sequence_owner] += 1

    def _end(self, batch: Batch, started_ns: int) -> None:
        self.free += 1
        self.sizes.append(batch.size)
        self.latencies_ms += [(self.now_ns - each.received_ns) / _MS for each in batch.entries]
        done = execution(self.now_ns - started_ns, finished_ns=self.now_ns)
        self.times.record("i", batch, done, waited=False)
        if self.target is not None:
            self.target.on_executed(batch, self.now_ns)

    def _dispatch(self) -> None:
        for entry, _ in self.batcher.expire_entries(self.now_ns):
            self._refuse(entry)
        while self.free:
            batch = self.batcher.next_batch(self.now_ns, self.instances)
            if batch is None:
                break
            self.free -= 1
            took_ms = (10 + batch.size) * self.factor * (1 + abs(self.random.gauss(0, 0.03)))
            self._push(self.now_ns + int(took_ms * _MS), (batch, self.now_ns))
        else:
            self.batcher.form_batches(self.now_ns, self.instances)
        at_ns = self.batcher.wake_at_ns(self.now_ns)
        if at_ns is not None:
            self._push(at_ns, None)


def world_of(config: ModelConfig) -> World:
    times = BatchTimes(by_rows=True)
    return World(make_batcher(config, times=times), times)


def test_a_load_that_doubles_and_halves_is_in_time_and_nearly_all_served() -> None:
    world = world_of(model_of(text_of(50)))
    for rate in (500, 1000, 500):
        p99, served = world.measure(2, rate)
        assert p99 <= 55
        assert served >= 0.97


def test_a_burst_beyond_what_can_be_served_is_refused_and_the_others_in_time() -> None:
    world = world_of(model_of(text_of(50)))
    world.measure(1, 500)
    p99, served = world.measure(2, 4000)
    assert p99 <= 55
    # With a batch of 24, which takes 34 ms, 1411 a second are the most.
    assert 0.9 * 1411 <= served * 4000 <= 1.1 * 1411
    p99, served = world.measure(1, 500)
    assert p99 <= 55
    assert served >= 0.97


def test_a_model_that_becomes_slower_is_batched_anew() -> None:
    world = world_of(model_of(text_of(50)))
    world.measure(2, 300)
    world.factor = 2.0
    p99, served = world.measure(2, 300)
    assert p99 <= 55
    assert served >= 0.8
    world.factor = 1.0
    p99, served = world.measure(2, 300)
    assert p99 <= 55
    assert served >= 0.97


def test_without_batching_what_would_miss_it_is_refused() -> None:
    world = world_of(model_of(text_of(50, "")))
    p99, served = world.measure(2, 2000)
    assert p99 <= 55
    # 11 ms each, at two instances.
    assert served * 2000 >= 0.9 * 2000 / 11


def test_a_target_that_cannot_be_held_bounds_the_queue_all_the_same() -> None:
    world = world_of(model_of(text_of(5)))
    p99, served = world.measure(2, 400)
    assert world.target is not None
    assert not world.target.reachable
    assert p99 <= 1.1 * 1.5 * 11 * 1.1
    assert served > 0.2


# Requests of a client a second, and rows of each; what may be refused of an honest client below its
# share, whose requests sometimes come close together.
HOGS = {
    "many": ((2000, 1), 0.02),
    "large": ((200, 32), 0.02),
    # Longer than the target by themselves.
    "larger than the target": ((200, 64), 0.05),
    "few, but larger than the target": ((10, 64), 0.02),
}


@pytest.mark.parametrize("name", HOGS)
def test_who_fills_the_queue_is_refused_and_a_client_below_its_share_is_not(name: str) -> None:
    hog, most = HOGS[name]
    world = world_of(model_of(text_of(50)))
    world.offer_from(1, honest=(60, 1))
    refused = world.offer_from(4, honest=(60, 1), hog=hog)
    assert refused["hog"] > 0.3
    assert refused["honest"] <= most
    # Likewise among several of each.
    hogs = {f"hog{number}": hog for number in range(2)}
    refused = world.offer_from(4, honest=(40, 1), other=(40, 1), **hogs)
    assert max(refused["honest"], refused["other"]) <= most


def test_without_clients_all_are_refused_alike() -> None:
    world = world_of(model_of(text_of(50)))
    world.offer_from(1, **{"": (60, 1)})
    assert world.offer_from(4, **{"": (4000, 1)})[""] > 0.5


def displacing_batcher() -> tuple[Batcher, list[Entry], Entry]:
    """A batcher whose queue is full of a hog's requests, of which one has just been displaced."""
    it = world_of(model_of(text_of(50)))
    it.offer_from(1, honest=(60, 1))
    hogs: list[Entry] = []
    with contextlib.suppress(Unavailable):
        while len(hogs) < 1000:
            hogs.append(it.enqueue_from("hog"))
    assert 0 < len(hogs) < 1000
    return it.batcher, hogs, it.enqueue_from("honest")


def test_a_displaced_request_is_refused_at_once() -> None:
    batcher, hogs, _ = displacing_batcher()
    assert batcher.pending == len(hogs)
    assert batcher.wake_at_ns(7) == 7
    ((entry, error),) = batcher.expire_entries(7)
    assert entry is hogs[-1]
    assert isinstance(error, Unavailable)
    assert batcher.expire_entries(8) == []
    assert batcher.wake_at_ns(8) != 8


def test_one_that_is_cancelled_first_is_refused_no_more() -> None:
    batcher, hogs, _ = displacing_batcher()
    assert batcher.remove_entry(hogs[-1])
    assert not batcher.remove_entry(hogs[-1])
    assert batcher.expire_entries(7) == []


def test_an_expired_request_is_forgotten() -> None:
    it = world_of(model_of(text_of(50)))
    entry = entry_of()
    entry.deadline_ns = 9
    it.batcher.enqueue(entry, 7)
    assert it.target is not None
    assert it.target.shares.queued_rows == 1
    ((expired, _),) = it.batcher.expire_entries(10)
    assert expired is entry
    assert it.target.shares.queued_rows == 0


def test_what_returns_from_an_instance_is_not_displaced() -> None:
    batcher, hogs, honest = displacing_batcher()
    target = target_of(batcher)
    assert target is not None
    batcher.expire_entries(7)
    batch = batcher.next_batch(8, 2)
    assert batch is not None
    target.forget(batch)
    batcher.requeue(batch.entries)
    assert not {*batch.entries} & {*target.shares.last_entries(1000, 0)}
    for entry in (*hogs[:-1], honest):
        assert batcher.remove_entry(entry)
    assert target.shares.queued_rows == 0


def test_a_models_call_is_neither_refused_nor_displaced() -> None:
    batcher, hogs, _ = displacing_batcher()
    call = entry_of()
    call.request.caller = 1
    batcher.enqueue(call, 7)
    target = target_of(batcher)
    assert target is not None
    assert call not in target.shares.last_entries(len(hogs) + 9, 0)
