"""Clients in closed loops get equal shares, in virtual time, and no length starves.

Clients whose batch has just ended come back together. Nobody may be served several times as often
as the others because the group that it came to is small.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from nereid_scheduler.batching.batcher import Batch, make_batcher
from nereid_scheduler.batching.times.batch_times import BatchTimes
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import Entry
from tests.support.scheduler.batching import execution
from tests.support.scheduler.samples import entry_of, model_of

MS = 1_000_000
SECONDS = 40
ROWS = "max_batch_size: 64 dynamic_batching { }"
TOKENS = """
max_batch_size: 32
input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
dynamic_batching { }
parameters { key: "padding" value { string_value: "ids[0]: 64 128 256" } }
parameters { key: "max_batch_tokens" value { string_value: "4096" } }
"""
# Milliseconds of a batch.
COSTS: dict[str, Callable[[Batch], float]] = {
    "each request costs the same": lambda batch: 10.0 * batch.size,
    "a sentence encoder": lambda batch: 4 + 9.0 * batch.size,
    "half of it is fixed": lambda batch: 20 + 5.0 * batch.size,
    "nearly all of it is fixed": lambda batch: 20 + 0.4 * batch.size,
}
TOKEN_COSTS: dict[str, Callable[[Batch], float]] = {
    "a core": lambda batch: 1.5 + 0.11 * batch.tokens,
    "a GPU": lambda batch: 4 + 0.0008 * batch.tokens,
}


@dataclass
class Loops:
    """Clients that send their next request up to 2 ms after a response; instances alike."""

    cost_ms: Callable[[Batch], float]
    clients: int
    instances: int
    model: str = ROWS
    # Returns the length of a client's next request.
    length: Callable[[int, random.Random], int] = lambda client, source: 0
    seconds: int = SECONDS
    open: dict[Entry, int] = field(default_factory=dict)
    responses: Counter[int] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    # Batches that a request saw leave without it, less the requests that were queued before it.
    overtaken: int = -1 << 30
    tokens: int = 0
    padded: int = 0
    source: random.Random = field(default_factory=lambda: random.Random(1))

    def run(self) -> None:
        router: Router[int] = Router()
        for number in range(self.instances):
            router.add_instance(number)
        times = BatchTimes()
        config = model_of(self.model)
        batcher = make_batcher(config, router, times, self.open)
        order = itertools.count()
        left = 0
        seen: dict[Entry, int] = {}
        events: list[tuple[int, int, int | None, tuple[int, Batch, int] | None]] = []

        def later(now_ns: int, client: int) -> None:
            at_ns = now_ns + self.source.randrange(2 * MS)
            heapq.heappush(events, (at_ns, next(order), client, None))

        for client in range(self.clients):
            later(0, client)
        while events[0][0] < self.seconds * 1000 * MS:
            now_ns, _, came, ended = heapq.heappop(events)
            if came is not None:
                entry = entry_of(length=self.length(came, self.source))
                entry.received_ns = now_ns
                self.open[entry] = came
                seen[entry] = left + batcher.pending
                batcher.enqueue(entry, now_ns)
            elif ended is not None:
                instance, batch, taken_ns = ended
                done = execution(taken_ns, finished_ns=now_ns)
                times.record(instance, batch, done, waited=False)
                if self.instances == 1:
                    batcher.batch_ended(instance, batch, taken_ns, now_ns)
                router.release_instance(instance)
                for entry in batch.entries:
                    who = self.open.pop(entry)
                    self.responses[who] += 1
                    self.latencies_ms.append((now_ns - entry.received_ns) / MS)
                    later(now_ns, who)
            while router.free and batcher.pending:
                planned = batcher.next_batch(now_ns, self.instances)
                if planned is None:
                    break
                free = router.acquire_instance()
                assert free is not None
                jitter = 1 + self.source.uniform(-0.03, 0.03)
                taken_ns = int(self.cost_ms(planned) * jitter * MS)
                for entry in planned.entries:
                    self.overtaken = max(self.overtaken, left - seen.pop(entry))
                    self.tokens += entry.valid.length
                left += 1
                self.padded += planned.tokens
                item = free, planned, taken_ns
                heapq.heappush(events, (now_ns + taken_ns, next(order), None, item))
            wake_ns = batcher.wake_at_ns(now_ns)
            if wake_ns is not None and router.free:
                heapq.heappush(events, (wake_ns, next(order), None, None))


@pytest.mark.parametrize("instances", [1, 2, 4])
@pytest.mark.parametrize("clients", [4, 8, 16, 64])
@pytest.mark.parametrize("cost", COSTS)
def test_every_client_gets_its_share(cost: str, clients: int, instances: int) -> None:
    loops = Loops(COSTS[cost], clients, instances)
    loops.run()
    mean = sum(loops.responses.values()) / clients
    assert min(loops.responses[client] for client in range(clients)) >= 0.8 * mean
    latencies = sorted(loops.latencies_ms)
    p99 = latencies[int(0.99 * len(latencies))]
    assert p99 <= 1.6 * sum(latencies) / len(latencies)


def any_length(client: int, source: random.Random) -> int:
    return source.randint(8, 256)


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("clients", [4, 16, 64])
@pytest.mark.parametrize("cost", TOKEN_COSTS)
def test_mixed_lengths_get_their_share_by_tokens(cost: str, clients: int, instances: int) -> None:
    seconds = 80 if cost == "a core" else 4
    loops = Loops(TOKEN_COSTS[cost], clients, instances, TOKENS, any_length, seconds=seconds)
    loops.run()
    mean = sum(loops.responses.values()) / clients
    assert min(loops.responses[client] for client in range(clients)) >= 0.8 * mean
    assert loops.overtaken <= 0
    if cost == "a core":
        # Padding costs as much as tokens: in order of arrival, nearly half of it would be padding.
        assert loops.padded <= 1.03 * loops.tokens


@pytest.mark.parametrize("lengths", [(8, 256), (256, 8)], ids=["a long one", "a short one"])
def test_one_of_another_length_does_not_starve(lengths: tuple[int, int]) -> None:
    usual, other = lengths
    loops = Loops(
        TOKEN_COSTS["a core"],
        32,
        1,
        TOKENS,
        lambda client, source: usual if client else other,
        seconds=20,
    )
    loops.run()
    assert loops.overtaken <= 0
    # It is served once for each batch or two of the others.
    mean = sum(loops.responses.values()) / 32
    assert loops.responses[0] >= 0.4 * mean
