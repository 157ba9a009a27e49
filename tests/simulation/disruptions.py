"""Disruptions by the seed, one after the other, as long as they are wanted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.executor import SimulatedExecutor
    from tests.simulation.instance import SimulatedInstance
    from tests.simulation.surroundings import Surroundings

_MEAN_PAUSE_S = 0.3
# By how often they come.
_KINDS = {
    "stall-execute": 8,
    "stall-join": 4,
    "pause-instance": 6,
    "break-execute": 4,
    "crash-worker": 3,
    "break-join": 1,
    "kill-executor": 1,
    "leave-executor": 1,
}


class Disruptions:
    """Of one simulation."""

    def __init__(self, where: Surroundings, executors: Sequence[SimulatedExecutor]) -> None:
        self._where = where
        self._executors = executors
        self._ended = False
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        self._where.loop.call_later(self._where.random.expovariate(1 / _MEAN_PAUSE_S), self._strike)

    def end(self) -> None:
        self._ended = True

    def _strike(self) -> None:
        if self._ended:
            return
        choices = self._where.random
        (kind,) = choices.choices(list(_KINDS), weights=list(_KINDS.values()))
        executor = choices.choice(self._executors)
        if executor.up and self._begin(kind, executor):
            self.counts[kind] += 1
        self.start()

    def _begin(self, kind: str, executor: SimulatedExecutor) -> bool:
        """Whether there was something for it to strike."""
        choices, history = self._where.random, self._where.history
        history.add("fault", f"{kind} of {executor.name}")
        join = executor.join_stream
        if join is None:
            return False
        if kind == "kill-executor":
            executor.kill()
        elif kind == "leave-executor":
            if executor.leaving:
                return False
            executor.leave()
        elif kind == "stall-join":
            choices.choice((join.up, join.down)).stall(choices.uniform(0.02, 1.5))
        elif kind == "break-join":
            join.break_off(lossy=choices.random() < 0.5)
        else:
            return self._begin_at_instance(kind, executor)
        return True

    def _begin_at_instance(self, kind: str, executor: SimulatedExecutor) -> bool:
        choices = self._where.random
        crashes = kind == "crash-worker"
        instances: list[SimulatedInstance] = [
            each
            for each in executor.instances.values()
            if each.stream is not None and (each.model.reports_crashes or not crashes)
        ]
        if not instances:
            return False
        instance = choices.choice(instances)
        stream = instance.stream
        assert stream is not None, "chosen by its stream"
        if crashes:
            executor.crash_worker(instance)
        elif kind == "pause-instance":
            instance.pause(choices.uniform(0.01, 0.2))
        elif kind == "stall-execute":
            choices.choice((stream.up, stream.down)).stall(choices.uniform(0.005, 0.2))
        else:
            stream.break_off(lossy=choices.random() < 0.5)
        return True
