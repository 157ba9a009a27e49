"""Clients in closed loops get equal shares, in virtual time.

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
# Milliseconds of a batch.
COSTS: dict[str, Callable[[int], float]] = {
    "each request costs the same": lambda size: 10.0 * size,
    "a sentence encoder": lambda size: 4 + 9.0 * size,
    "half of it is fixed": lambda size: 20 + 5.0 * size,
    "nearly all of it is fixed": lambda size: 20 + 0.4 * size,
}


@dataclass
class Loops:
    """Clients that send their next request up to 2 ms after a response; instances alike."""

    cost_ms: Callable[[int], float]
    clients: int
    instances: int
    open: dict[Entry, int] = field(default_factory=dict)
    responses: Counter[int] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    source: random.Random = field(default_factory=lambda: random.Random(1))

    def run(self) -> None:
        router: Router[int] = Router()
        for number in range(self.instances):
            router.add_instance(number)
        times = BatchTimes()
        config = model_of("max_batch_size: 64 dynamic_batching { }")
        batcher = make_batcher(config, router, times, self.open)
        order = itertools.count()
        events: list[tuple[int, int, int | None, tuple[int, Batch, int] | None]] = []

        def later(now_ns: int, client: int) -> None:
            at_ns = now_ns + self.source.randrange(2 * MS)
            heapq.heappush(events, (at_ns, next(order), client, None))

        for client in range(self.clients):
            later(0, client)
        while events[0][0] < SECONDS * 1000 * MS:
            now_ns, _, came, ended = heapq.heappop(events)
            if came is not None:
                entry = entry_of()
                entry.received_ns = now_ns
                self.open[entry] = came
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
                taken_ns = int(self.cost_ms(len(planned.entries)) * jitter * MS)
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
