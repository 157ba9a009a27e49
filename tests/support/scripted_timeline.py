"""Timelines that a mesh would record under a scripted load, with faults that a test plants.

One scheduler, one gateway, executors with one instance each of each model; a model's queue is
served in order, as by the dynamic batcher: by an idle instance at once, or after the delay.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nereid.timeline.records import (
    DELAY,
    RATE_LIMITER,
    BatchRecord,
    Event,
    ExecutionRecord,
    GatewayRequest,
    Member,
    ServiceTimeline,
    Timeline,
    Wait,
)

MS = 1_000_000
US = 1_000
S = 1_000_000_000
# When everything begins.
START = 1_000 * S
# Between two services, and from a thread to another.
HOP = 60 * US


@dataclass
class Load:
    """Requests of one model, and how it serves them. Times are in nanoseconds."""

    model: str = "m"
    rate: float = 200.0
    max_batch: int = 8
    executors: tuple[str, ...] = ("e0",)
    delay: int = 0
    copy_in: int = 20 * US
    copy_out: int = 20 * US
    # Time of a batch by its size.
    compute: Callable[[int], int] = lambda size: 2 * MS + size * 100 * US
    # The share by which times vary.
    noise: float = 0.2
    # One resource, which others hold for so long after each batch.
    limited: int = 0
    # By executor: when (from START), and for how long.
    stalls: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    # Requests come so many at once.
    burst: int = 1


def scripted(
    *loads: Load, seconds: float = 5.0, seed: int = 1, killed: dict[str, int] | None = None
) -> Timeline:
    """Return the timeline. killed: executors, and when (from START): their records are lost."""
    end = START + int(seconds * S)
    names = sorted({each for load in loads for each in load.executors})
    services = {
        "gateway": ServiceTimeline("gateway", "gateway-0", from_ns=START, to_ns=end),
        "scheduler": ServiceTimeline("scheduler", "scheduler-0", from_ns=START, to_ns=end),
        **{
            name: ServiceTimeline("executor", name, from_ns=START, to_ns=end)
            for name in names
            if name not in (killed or {})
        },
    }
    ends = {name: START + at for name, at in (killed or {}).items()}
    numbers = iter(range(1, 1 << 60))
    for load in loads:
        _Script(load, random.Random(f"{seed} {load.model}"), services, ends, numbers).run(end)
    for name, at in ends.items():
        services["scheduler"].records.append(
            Event("executor lost", name, at, 0, "its stream ended")
        )
    return Timeline(1_700_000_000 * S, list(services.values()))


@dataclass
class _Script:
    load: Load
    random: random.Random
    services: dict[str, ServiceTimeline]
    killed: dict[str, int]
    numbers: Iterator[int]

    def run(self, end: int) -> None:
        load, scheduler = self.load, self.services["scheduler"].records
        queue = [
            (received + HOP, received, 0, next(self.numbers)) for received in self.arrivals(end)
        ]
        free = [(START, name) for name in load.executors]
        counts = dict.fromkeys(load.executors, 0)
        resource, at = START, 0
        heapq.heapify(free)
        while at < len(queue) and free:
            idle, name = heapq.heappop(free)
            oldest = queue[at][0]
            ready = max(idle, oldest)
            if ready >= self.killed.get(name, end):
                continue
            full = queue[at + load.max_batch - 1][0] if at + load.max_batch <= len(queue) else end
            closed = max(ready, min(oldest + load.delay, full))
            if closed > ready and load.delay:
                scheduler.append(Wait(load.model, "1", DELAY, ready, closed, 1))
            sent = max(closed, resource) if load.limited else closed
            if sent > closed:
                scheduler.append(Wait(load.model, "1", RATE_LIMITER, closed, sent, 1))
            members = [each for each in queue[at : at + load.max_batch] if each[0] <= sent]
            at += len(members)
            finished = self.execute(name, counts[name], idle, sent, members)
            counts[name] += 1
            if finished > self.killed.get(name, finished):
                lost = self.killed[name]
                self.batch(name, counts[name] - 1, idle, sent, members, lost, "executor lost")
                again = [(lost, got, retries + 1, number) for _, got, retries, number in members]
                queue[at:at] = again
                continue
            resource = finished + load.limited
            heapq.heappush(free, (finished, name))

    def arrivals(self, end: int) -> Iterator[int]:
        at = float(START)
        while True:
            at += self.random.expovariate(self.load.rate / self.load.burst) * S
            if at > end - 50 * MS:
                return
            for each in range(self.load.burst):
                yield int(at) + each * 5 * US

    def varied(self, duration: int) -> int:
        return int(duration * (1 + self.load.noise * self.random.random()))

    def execute(
        self, name: str, number: int, idle: int, sent: int, members: list[tuple[int, int, int, int]]
    ) -> int:
        """An execution as a whole, but for one that its executor does not survive."""
        load = self.load
        received = sent + HOP
        copied = received + self.varied(load.copy_in)
        done = copied + self.varied(load.compute(len(members)))
        for when, duration in load.stalls.get(name, ()):
            if copied <= START + when < done or (sent < START + when + S and START + when < copied):
                done += duration
                load.stalls[name].remove((when, duration))
                break
        output = done + self.varied(load.copy_out)
        written = output + self.varied(20 * US)
        finished = written + HOP
        if finished > self.killed.get(name, finished):
            return finished
        size = len(members)
        if name in self.services:
            self.services[name].records.append(
                ExecutionRecord(
                    load.model, "1", f"{load.model}_0_{name}", number, size, received,
                    copied, done, output, written, size * 100, size * 100,
                )
            )  # fmt: skip
        phases = copied - received, done - copied, output - done
        self.batch(name, number, idle, sent, members, finished, "", phases)
        for _, got, _, request in members:
            self.services["gateway"].records.append(
                GatewayRequest(
                    request, load.model, "", "grpc", f"r{request}", "", got - 2 * HOP,
                    finished + 2 * HOP, 0,
                )
            )  # fmt: skip
        return finished

    def batch(
        self,
        name: str,
        number: int,
        idle: int,
        sent: int,
        members: list[tuple[int, int, int, int]],
        finished: int,
        error: str,
        phases: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        self.services["scheduler"].records.append(
            BatchRecord(
                self.load.model, "1", f"{self.load.model}_0_{name}", name, number, len(members),
                tuple(
                    Member(request, got, enqueued, retries)
                    for enqueued, got, retries, request in members
                ),
                idle, sent, sent, finished, *phases, error,
            )
        )  # fmt: skip
