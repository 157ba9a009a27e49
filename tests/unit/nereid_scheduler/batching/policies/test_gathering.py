"""An instance waits for the clients of its last batch where that pays, and for nobody else."""

import heapq
import itertools
import random
import statistics
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest

from nereid_scheduler.batching.batcher import Batch, DynamicBatcher, make_batcher
from nereid_scheduler.batching.policies.gathering import Gathering, can_gather
from nereid_scheduler.batching.times.batch_times import BatchTimes
from nereid_scheduler.core.requests.entry import Entry
from tests.support.scheduler.batching import execution
from tests.support.scheduler.samples import entry_of, model_of
from tests.support.scheduler.sequence_site import SequenceSite

US = 1000
MS = 1000 * US
KEY = ("shape",)
# How long a batch of so many takes: a token of many sequences costs little more than one.
CHEAPER = {1: 6, 2: 8, 3: 10, 4: 12}


def _cheaper(requests: int) -> int:
    return CHEAPER.get(requests, 3 * requests) * MS


def _linear(requests: int) -> int:
    return 6 * requests * MS


class Site:
    """One instance in virtual time, which is asked for batches as a ModelVersion does."""

    def __init__(self, taken_ns: Callable[[int], int], max_batch_size: int = 16) -> None:
        config = model_of(f"max_batch_size: {max_batch_size} dynamic_batching {{ }}")
        self.times = BatchTimes()
        batcher = make_batcher(config, times=self.times)
        assert isinstance(batcher, DynamicBatcher)
        self.batcher = batcher
        self.taken_ns = taken_ns
        self.now_ns = 0
        self.batches: list[int] = []
        self.begun_ns: list[int] = []
        # How long the instance was to stay free while requests waited.
        self.held_ns = 0

    def run(
        self, arrivals: Iterator[int], after: Callable[[int], int | None], batches: int
    ) -> None:
        """arrivals: when requests come whatever happens. after: how long after the nth response its
        client sends its next request; None: never.
        """
        events: list[tuple[int, int, str]] = []
        numbers, responses = itertools.count(), itertools.count()

        def add(at_ns: int, kind: str) -> None:
            heapq.heappush(events, (at_ns, next(numbers), kind))

        executing = None
        upcoming = next(arrivals, None)
        while len(self.batches) < batches:
            if upcoming is not None and (not events or upcoming < events[0][0]):
                self.now_ns = upcoming
                upcoming = next(arrivals, None)
                self.batcher.enqueue(entry_of(), self.now_ns)
            else:
                self.now_ns, _, kind = heapq.heappop(events)
                if kind == "request":
                    self.batcher.enqueue(entry_of(), self.now_ns)
                elif kind == "end":
                    assert executing is not None
                    taken_ns = self.taken_ns(len(executing.entries))
                    self.times.record("only", executing, execution(taken_ns), waited=False)
                    self.batcher.batch_ended("only", executing, taken_ns, self.now_ns)
                    for _ in executing.entries:
                        pause_ns = after(next(responses))
                        if pause_ns is not None:
                            add(self.now_ns + pause_ns, "request")
                    executing = None
            if executing is None and self.batcher.pending:
                executing = self.batcher.next_batch(self.now_ns, 1)
                if executing is None:
                    at_ns = self.batcher.wake_at_ns(self.now_ns)
                    assert at_ns is not None, "nothing would ever wake it"
                    add(at_ns, "look")
                    self.held_ns += at_ns - self.now_ns
                else:
                    self.batches.append(len(executing.entries))
                    self.begun_ns.append(self.now_ns)
                    add(self.now_ns + self.taken_ns(len(executing.entries)), "end")


def _first(count: int) -> Iterator[int]:
    """The first requests of so many clients, one after the other."""
    return iter(range(0, count * 100 * US, 100 * US))


def test_clients_that_take_turns_come_together() -> None:
    site = Site(_cheaper)
    site.run(_first(4), lambda _: 700 * US, 200)
    assert site.batches[0] == 1
    assert set(site.batches[60:]) == {4}


def test_a_lone_client_waits_for_nobody() -> None:
    site = Site(_cheaper)
    site.run(_first(1), lambda _: 700 * US, 100)
    assert set(site.batches) == {1}
    assert not site.held_ns


def test_batches_that_do_not_get_cheaper_are_tried_and_left_alone() -> None:
    site = Site(_linear)
    site.run(_first(4), lambda _: 700 * US, 400)
    # Eight batches of four in 256.
    assert site.batches.count(4) <= 30


def test_requests_that_come_at_any_time_are_not_waited_for() -> None:
    site = Site(_cheaper)
    # One every 4 ms: the instance is busy for most of the time.
    site.run(iter(range(0, 1600 * MS, 4 * MS)), lambda _: None, 200)
    assert not site.held_ns


def test_clients_that_think_for_long_are_not_waited_for() -> None:
    site = Site(_cheaper)
    site.run(_first(4), lambda _: 5 * MS, 200)
    assert not site.held_ns


def test_after_waits_in_vain_there_are_fewer() -> None:
    site = Site(_cheaper)
    leaving = (400, 401, 402)
    site.run(_first(4), lambda number: None if number in leaving else 700 * US, 500)
    assert set(site.batches[130:]) == {1}
    # What is left is one client; no wait is longer than twice what it takes to come back.
    taken_ns = site.now_ns - site.begun_ns[130]
    assert 0 <= taken_ns - (500 - 131) * (6 * MS + 700 * US) <= 2 * 700 * US


def test_no_more_are_waited_for_than_a_batch_may_have() -> None:
    site = Site(_cheaper, max_batch_size=4)
    site.run(_first(6), lambda _: 700 * US, 200)
    assert max(site.batches) == 4


# ---- clients that want others to wait

# How long a hostile client pauses after a response, as a multiple of what the batch took. The
# second argument is a number of the response.
Pause = Callable[[random.Random, int], float]
PAUSES: dict[str, Pause] = {
    "prompt": lambda chance, number: 0.01,
    "at the last moment": lambda chance, number: 0.24,
    "just too late": lambda chance, number: 0.26,
    "by turns": lambda chance, number: (0.05, 0.3)[number // 30 % 2],
    "eight times and then late": lambda chance, number: 0.24 if number % 9 else 0.5,
    "prompt until it counts": lambda chance, number: 0.24 if number % 40 < 34 else 3.0,
}


def _any_pause(seed: int) -> Pause:
    chance = random.Random(seed)
    pauses = [chance.choice([0.01, 0.05, 0.1, 0.2, 0.24, 0.26, 0.4, 0.5, 1, 2, 5]) for _ in "1234"]
    turns = chance.choice([1, 5, 20, 50, 200])
    return lambda chance, number: (
        chance.choice(pauses) if turns == 1 else pauses[number // turns % len(pauses)]
    )


def _honest_ns(
    pause: Pause, hostile: int, taken_ns: Callable[[int], int], *, gathers: bool
) -> list[int]:
    """How long requests of others take, from their arrival to their response; sorted."""
    more = "" if gathers else "default_queue_policy { max_queue_size: 1000 }"
    config = model_of(f"max_batch_size: 16 dynamic_batching {{ {more} }}")
    assert can_gather(config) is gathers
    times, chance = BatchTimes(), random.Random(1)
    batcher = make_batcher(config, times=times)
    events: list[tuple[int, int, str]] = []
    numbers, responses = itertools.count(), itertools.count()

    def add(at_ns: int, kind: str) -> None:
        heapq.heappush(events, (at_ns, next(numbers), kind))

    for number in range(hostile):
        add(number * 100 * US, "hostile")
    add(50 * MS, "honest")
    senders: dict[Entry, tuple[str, int]] = {}
    executing, batches, found = None, 0, []
    while batches < 500:
        now_ns, _, kind = heapq.heappop(events)
        if kind in {"hostile", "honest"}:
            entry = entry_of()
            senders[entry] = kind, now_ns
            batcher.enqueue(entry, now_ns)
            if kind == "honest":
                add(now_ns + chance.randrange(80 * MS), kind)
        elif kind == "end":
            assert executing is not None
            lasted_ns = taken_ns(len(executing.entries))
            times.record("only", executing, execution(lasted_ns), waited=False)
            batcher.batch_ended("only", executing, lasted_ns, now_ns)
            for entry in executing.entries:
                kind, came_ns = senders.pop(entry)
                if kind == "honest":
                    found.append(now_ns - came_ns)
                else:
                    add(now_ns + int(lasted_ns * pause(chance, next(responses))), kind)
            executing = None
        if executing is None and batcher.pending:
            executing = batcher.next_batch(now_ns, 1)
            if executing is None:
                at_ns = batcher.wake_at_ns(now_ns)
                assert at_ns is not None, "nothing would ever wake it"
                add(at_ns, "look")
            else:
                batches += 1
                add(now_ns + taken_ns(len(executing.entries)), "end")
    return sorted(found)


@pytest.mark.parametrize(
    "pause",
    [
        *(pytest.param(pause, id=name) for name, pause in PAUSES.items()),
        *(
            pytest.param(
                _any_pause(seed), id=str(seed), marks=[pytest.mark.nightly] if seed else []
            )
            for seed in range(20)
        ),
    ],
)
@pytest.mark.parametrize("hostile", [3, 8])
@pytest.mark.parametrize("taken_ns", [_cheaper, lambda requests: (20 + requests // 4) * MS])
def test_who_is_waited_for_delays_others_by_half_at_most(
    pause: Pause, hostile: int, taken_ns: Callable[[int], int]
) -> None:
    waiting, plain = (
        _honest_ns(pause, hostile, taken_ns, gathers=gathers) for gathers in (True, False)
    )
    assert statistics.mean(waiting) <= 1.5 * statistics.mean(plain)
    for quantile in (0.5, 0.9, 0.99):
        found, without = (each[int(quantile * len(each))] for each in (waiting, plain))
        assert found <= 1.75 * without, quantile


# ---- the machine itself


class Machine:
    """A Gathering with its own table of times."""

    def __init__(self) -> None:
        self.times = BatchTimes()
        self.gathering = Gathering(self.times)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gathering, name)

    def ended(
        self,
        requests: int,
        *,
        pending: int,
        now_ns: int,
        most: int = 16,
        key: Hashable = KEY,
        taken_ns: int = 0,
    ) -> None:
        """A batch of so many has ended. taken_ns: by default as where batches get cheaper."""
        taken_ns = taken_ns or _cheaper(requests)
        batch = Batch([entry_of(key=key) for _ in range(requests)], requests, "full")
        self.times.record("only", batch, execution(taken_ns), waited=False)
        self.gathering.batch_ended(key, requests, taken_ns, pending, most, now_ns)


def _entries(count: int, at_ns: int) -> list[Entry]:
    entries = [entry_of() for _ in range(count)]
    for entry in entries:
        entry.enqueued_ns = at_ns
    return entries


def _taught(requests: int = 2) -> tuple[Machine, int]:
    """Two groups have taken turns for long; the time, at which a batch has just ended."""
    gathering, now_ns = Machine(), 0
    for _ in range(60):
        gathering.batch_dispatched(_entries(requests, now_ns - _cheaper(requests) + 500 * US))
        now_ns += _cheaper(requests)
        gathering.ended(requests, pending=requests, now_ns=now_ns)
    return gathering, now_ns


def test_it_waits_for_all_or_until_they_would_have_come() -> None:
    gathering, now_ns = _taught()
    assert gathering.expected == 4
    # Twice what clients take, which is 0.5 ms.
    assert gathering.until_ns == pytest.approx(now_ns + MS, rel=0.01)
    assert gathering.should_wait(2, now_ns)
    assert gathering.should_wait(3, now_ns + 400 * US)
    assert not gathering.should_wait(4, now_ns + 500 * US)
    gathering.batch_dispatched(_entries(4, now_ns + 500 * US))
    assert not gathering.expected
    # The time is over.
    gathering, now_ns = _taught()
    assert gathering.should_wait(2, now_ns)
    assert not gathering.should_wait(3, gathering.until_ns)
    assert not gathering.should_wait(3, now_ns)


@pytest.mark.parametrize("misses", [1, 2, 3])
def test_each_wait_in_vain_doubles_the_batches_without_one(misses: int) -> None:
    gathering, now_ns = _taught()
    for _ in range(misses):
        assert gathering.should_wait(2, now_ns)
        gathering.batch_dispatched(_entries(2, now_ns - 7 * MS))
        waits = 0
        while not waits or not gathering.expected:
            gathering.ended(2, pending=2, now_ns=(now_ns := now_ns + 8 * MS))
            waits += 1
            assert waits < 1000
            if not gathering.expected:
                gathering.batch_dispatched(_entries(2, now_ns - 7 * MS))
    assert waits == (1 << misses) + 1
    # One that was not in vain: the next miss counts as the first.
    assert gathering.should_wait(2, now_ns)
    gathering.batch_dispatched(_entries(4, now_ns + 500 * US))
    gathering.ended(4, pending=2, now_ns=now_ns + 12 * MS)
    assert gathering.expected == 6


def test_another_shape_begins_anew() -> None:
    gathering, now_ns = _taught()
    gathering.ended(2, pending=2, now_ns=now_ns, key=("other",))
    assert not gathering.expected
    gathering.ended(2, pending=2, now_ns=now_ns)
    assert not gathering.expected
    # What cannot be compared is of no shape.
    gathering, now_ns = _taught()
    gathering.batch_ended(None, 2, 8 * MS, 2, 16, now_ns)
    gathering.batch_ended(None, 2, 8 * MS, 2, 16, now_ns)
    assert not gathering.expected


def test_large_batches_are_compared_by_about_their_size() -> None:
    gathering, now_ns = _taught(requests=40)
    # 80 were never tried.
    gathering.ended(40, pending=40, now_ns=now_ns, most=80)
    assert gathering.should_wait(40, now_ns)
    for requests in (77, 78, 79, 80) * 2:
        gathering.ended(requests, pending=0, now_ns=now_ns, taken_ns=requests * 4 * MS)
    gathering.ended(40, pending=40, now_ns=now_ns, most=80)
    assert not gathering.should_wait(40, now_ns)


def test_sequences_are_waited_for_at_their_own_instance() -> None:
    site = SequenceSite("oldest { max_candidate_sequences: 8 }", max_batch_size=8)
    which = {site.enqueue(sequence, "s"): sequence for sequence in (1, 2)}
    batch: Batch | None = site.sent()
    which |= {site.enqueue(sequence, "s"): sequence for sequence in (3, 4)}
    turns = 0
    while batch is not None:
        ended = batch
        site.now_ns += 8 * MS
        site.times.record("i0", ended, execution(8 * MS), waited=False)
        site.batcher.batch_ended("i0", ended, 8 * MS, site.now_ns)
        site.finish(*ended.entries)
        # The other two execute, until their instance waits for these.
        batch = site.batch()
        ended_ns, site.now_ns = site.now_ns, site.now_ns + 500 * US
        which |= {site.enqueue(which[entry]): which[entry] for entry in ended.entries}
        site.now_ns = ended_ns if batch is not None else site.now_ns
        turns += 1
        assert turns < 100, "two groups take turns for ever"
    assert turns > 8
    assert len(site.sent().entries) == 4
    # An instance that is gone has nothing to say.
    site.batcher.batch_ended("i1", ended, 8 * MS, site.now_ns)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("dynamic_batching { }", True),
        ("dynamic_batching { preferred_batch_size: 4 }", False),
        ("dynamic_batching { max_queue_delay_microseconds: 10 }", False),
        ("dynamic_batching { default_queue_policy { max_queue_size: 3 } }", False),
        ("dynamic_batching { } model_transaction_policy { decoupled: true }", False),
        ("sequence_batching { oldest { max_candidate_sequences: 4 } }", True),
        ("sequence_batching { oldest { max_queue_delay_microseconds: 10 } }", False),
        ("sequence_batching { direct { } }", False),
        (
            "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } }",
            False,
        ),
        ("", False),
    ],
)
def test_only_where_nothing_says_how_long_requests_may_queue(
    config: str, *, expected: bool
) -> None:
    assert can_gather(model_of(f"max_batch_size: 8 {config}")) is expected


def test_where_requests_may_queue_for_long_ends_are_not_reported() -> None:
    delay = "max_queue_delay_microseconds: 10"
    site = SequenceSite(f"oldest {{ max_candidate_sequences: 2 {delay} }}")
    site.enqueue(1, "s")
    site.now_ns = 10 * US
    batch = site.sent()
    site.batcher.batch_ended("i0", batch, 8 * MS, 8 * MS)
    site.finish(*batch.entries)
    site.enqueue(1)
    assert site.batcher.wake_at_ns(site.now_ns) is not None
    dynamic = make_batcher(model_of(f"max_batch_size: 8 dynamic_batching {{ {delay} }}"))
    assert isinstance(dynamic, DynamicBatcher)
    dynamic.enqueue(entry_of(), 0)
    left = dynamic.next_batch(10 * US, 1)
    assert left is not None
    dynamic.batch_ended("i0", left, 8 * MS, 8 * MS)
    assert dynamic.closes_ns(8 * MS) is None
