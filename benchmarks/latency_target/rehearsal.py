"""One run of the rehearsal: open-loop clients, and the real core of one scheduler.

Clients do not wait for responses; instances are timers.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.latency_target.load import Phase, arrivals
from benchmarks.simulation.mesh import (
    CommandStream,
    SimulatedScheduler,
    Size,
    head_of,
    model_text,
)
from nereid.core.wire.messages import InferRequest
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.placement.executors.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nereid.core.wire.messages import InferResponse

MODEL = "m0"
INSTANCES = 2
LARGEST = 64
# Bounds of an execution's time, and of the time of each of its requests.
EXECUTION_S = (0.010, 0.011)
REQUEST_S = 0.001
# Time after a change of the load in which nothing is judged.
SETTLING_S = 0.5
_WINDOW_S = 1.0


@dataclass(frozen=True)
class Setting:
    """Setting of the model: a latency target, or fixed batching.

    Fixed batching has a batch size, a delay, and a maximum queue size (0 means no maximum).
    """

    target_us: int = 0
    size: int = LARGEST
    delay_us: int = 0
    max_queue_size: int = 0

    @property
    def text(self) -> str:
        """Text of the setting."""
        if self.target_us:
            value = f'value {{ string_value: "{self.target_us}" }}'
            return f'dynamic_batching {{ }} parameters {{ key: "target_p99_us" {value} }}'
        bound = f"default_queue_policy {{ max_queue_size: {self.max_queue_size} }}"
        return (
            f"dynamic_batching {{ preferred_batch_size: {self.size}"
            f" max_queue_delay_microseconds: {self.delay_us} {bound} }}"
        )


@dataclass
class Outcome:
    """The result of a run.

    requests: time of sending and latency of each ended request; the latency is `None` if the
    request was refused. plans: the decisions of the latency target, recorded ten times a second.
    """

    setting: Setting
    phases: Sequence[Phase]
    requests: list[tuple[float, float | None]] = field(default_factory=list)
    plans: list[tuple[float, int, int]] = field(default_factory=list)
    reachable: bool = True
    held_us: int = 0

    def figures(self, target_s: float) -> dict[str, Any]:
        """Return figures by phase: goodput per second, p99, and p99 of the worst window.

        The p99 covers served requests that were sent after the settling time of the phase.
        """
        found = {}
        since_s = 0.0
        for phase in self.phases:
            until_s = since_s + phase.seconds
            sent = [request for request in self.requests if since_s <= request[0] < until_s]
            served = [(at_s, took) for at_s, took in sent if took is not None]
            windows: dict[int, list[float]] = {}
            for at_s, took_s in served:
                # The last requests of a phase are executed in the next phase.
                if since_s + SETTLING_S <= at_s < until_s - 2 * target_s:
                    windows.setdefault(int((at_s - since_s - SETTLING_S) / _WINDOW_S), []).append(
                        took_s
                    )
            found[phase.name] = {
                "offered": round(len(sent) / phase.seconds, 1),
                "goodput": round(sum(took <= target_s for _, took in served) / phase.seconds, 1),
                "p99_ms": _p99_ms([latency for window in windows.values() for latency in window]),
                "worst_p99_ms": max(map(_p99_ms, windows.values()), default=0.0),
            }
            since_s = until_s
        return found

    def series(self, target_s: float) -> dict[str, list[float]]:
        """Return the series by second."""
        seconds = int(sum(phase.seconds for phase in self.phases))
        rows = []
        for second in range(seconds):
            sent = [took for at_s, took in self.requests if second <= at_s < second + 1]
            served = [took for took in sent if took is not None]
            plans = [plan for plan in self.plans if second <= plan[0] < second + 1]
            rows.append(
                (
                    second,
                    len(sent),
                    sum(took <= target_s for took in served),
                    _p99_ms(served),
                    plans[-1][1] if plans else self.setting.size,
                    plans[-1][2] / 1000 if plans else self.setting.delay_us / 1000,
                )
            )
        names = ("second", "offered", "goodput", "p99_ms", "batch_size", "delay_ms")
        return {
            name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }


def _p99_ms(latencies_s: Sequence[float]) -> float:
    if not latencies_s:
        return 0.0
    return round(1000 * sorted(latencies_s)[int(0.99 * (len(latencies_s) - 1))], 1)


async def rehearse(setting: Setting, phases: Sequence[Phase], seed: int = 1) -> Outcome:
    """Run the rehearsal in an event loop with virtual time."""
    mesh = _Mesh(setting, phases, seed)
    await asyncio.sleep(0.001)
    return await mesh.run(arrivals(phases, seed))


class _Mesh:
    def __init__(self, setting: Setting, phases: Sequence[Phase], seed: int) -> None:
        self.size = Size(INSTANCES, 1, setting.text, max_batch_size=_most(setting))
        self.loop = asyncio.get_running_loop()
        self.random = random.Random(seed)
        self.execution_s = EXECUTION_S
        self.request_s = REQUEST_S
        self.busy_s = 0.0
        self.executions = 0
        self._outcome = Outcome(setting, phases)
        self._phases = phases
        self._head = head_of(MODEL, self.size.max_batch_size)
        self._sent_s: dict[int, float] = {}
        self._sent = 0
        self._all_sent = False
        self._drained = self.loop.create_future()
        self._scheduler = scheduler = SimulatedScheduler(self)
        scheduler.load(MODEL, model_text(self.size))
        for number in range(INSTANCES):
            hello = pb.Hello(name=f"e{number}", host=f"e{number}", backends=["python"])
            scheduler.loader.executor_joined(Session(hello, CommandStream(scheduler)))

    async def run(self, times_s: Iterator[float]) -> Outcome:
        """Send requests at these times, and return the outcome."""
        self._began_s = began_s = self.loop.time()
        since_s = began_s
        for phase in self._phases:
            self.loop.call_at(since_s, self._begin_phase, phase)
            since_s += phase.seconds
        self._observe()
        self._await_next(times_s)
        await self._drained
        outcome = self._outcome
        target = self._target
        if target is not None:
            outcome.reachable = target.reachable
            outcome.held_us = int(target.held_ns) // 1000
        return outcome

    @property
    def _target(self) -> Any:
        (served,) = self._scheduler.catalogue.versions()
        return served.runtime.dispatcher.target if served.runtime is not None else None

    def _begin_phase(self, phase: Phase) -> None:
        shortest_s, longest_s = EXECUTION_S
        self.execution_s = shortest_s * phase.slower, longest_s * phase.slower
        self.request_s = REQUEST_S * phase.slower

    def _observe(self) -> None:
        if self._drained.done():
            return
        target = self._target
        if target is not None:
            plan = target.plan
            now_s = self.loop.time() - self._began_s
            self._outcome.plans.append((now_s, plan.size, plan.delay_ns // 1000))
        self.loop.call_later(0.1, self._observe)

    def _await_next(self, times_s: Iterator[float]) -> None:
        time_s = next(times_s, None)
        if time_s is not None:
            self.loop.call_at(self._began_s + time_s, self._submit, times_s)
        else:
            self._all_sent = True
            self._end_if_drained()

    def _submit(self, times_s: Iterator[float]) -> None:
        self._sent += 1
        self._sent_s[self._sent] = self.loop.time()
        self._scheduler.gateway.on_items([InferRequest(self._sent, self._head, [b"x"])])
        self._await_next(times_s)

    # ---- the gateway's end of the link

    def send(self, item: InferResponse, at_once: bool = False) -> None:  # noqa: ARG002 (as Link)
        """Take a response."""
        sent_s = self._sent_s.pop(item.id)
        took_s = self.loop.time() - sent_s if item.error is None else None
        self._outcome.requests.append((sent_s - self._began_s, took_s))
        self._end_if_drained()

    def _end_if_drained(self) -> None:
        if self._all_sent and not self._sent_s and not self._drained.done():
            self._drained.set_result(None)


def _most(setting: Setting) -> int:
    """Return the largest batch; a fixed setting's size is its max_batch_size."""
    return LARGEST if setting.target_us else setting.size
