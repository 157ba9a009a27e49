"""200 models in 10 slots under a Zipf load, in virtual time: never too much in memory, no model
that is in use unloaded, every request served, and a hit rate not far from the optimum's.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import pytest

from benchmarks.model_cache import trace
from nereid_scheduler.control.residency.policies.model_memory import Status
from nereid_scheduler.control.residency.policies.policy import Actions, Residency, Usage
from nereid_scheduler.control.residency.policies.popularity import Popularity

MODELS, SLOTS, REQUESTS = 200, 10, 2_000
LOAD_S, UNLOAD_S, EXECUTE_S = 0.02, 0.002, 0.0005
# The flag's default.
HALF_LIFE = 4.0


def zipf(exponent: float, seed: int) -> list[int]:
    return trace.zipf(MODELS, REQUESTS, exponent, seed)


class World:
    """An executor that loads, unloads and executes in virtual time."""

    def __init__(self, pinned: Sequence[str] = (), half_life: float = HALF_LIFE) -> None:
        self.now = 0.0
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._residency = Residency({"cpu": SLOTS})
        self._residency.add_executor("a", {})
        self._popularity = Popularity(half_life)
        self._used: dict[str, float] = {}
        # Of each model in memory, since it was loaded.
        self._executed: dict[str, int] = {}
        self._open: dict[str, deque[float]] = {}
        self._pinned = pinned
        self.hits = self.served = 0
        self.longest_s = 0.0
        for model in pinned:
            self._residency.pin(model, {"a": {"cpu": 1}})

    def at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    def run(self) -> None:
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
            assert self._residency.memory.used("a", "cpu") <= SLOTS

    def request(self, model: str) -> None:
        self._open.setdefault(model, deque()).append(self.now)
        if self._residency.status(model) is Status.RESIDENT:
            self.hits += 1
            self.at(self.now + EXECUTE_S, partial(self._serve, model))
        else:
            self._act(self._residency.request(model, {"a": {"cpu": 1}}, self._usages()))

    def _serve(self, model: str) -> None:
        self._used[model] = self.now
        if model not in self._pinned:
            self._executed[model] += 1
        self.served += 1
        self.longest_s = max(self.longest_s, self.now - self._open[model].popleft())
        if self._residency.waiting:
            self._act(self._residency.retry(self._usages()))

    def _usages(self) -> dict[str, Usage]:
        self._popularity.update(self._executed)
        return {
            model: Usage(self._used.get(model, 0.0), bool(waiting), self._popularity.count(model))
            for model, waiting in self._open.items()
        }

    def _act(self, actions: Actions) -> None:
        assert not actions.refusals
        for model in actions.unloads:
            assert not self._open[model], "in use"
            assert model not in self._pinned
            self.at(self.now + UNLOAD_S, partial(self._unloaded, model))
        for load in actions.loads:
            self.at(self.now + LOAD_S, partial(self._loaded, load.model))

    def _loaded(self, model: str) -> None:
        self._used[model] = self.now
        self._executed[model] = 0
        for _ in self._open[model]:
            self.at(self.now + EXECUTE_S, partial(self._serve, model))
        self._act(self._residency.loaded(model, {}, self._usages()))

    def _unloaded(self, model: str) -> None:
        del self._executed[model]
        self._act(self._residency.unloaded(model, self._usages()))


def replay(requests: list[int], pinned: Sequence[str] = (), half_life: float = HALF_LIFE) -> World:
    """So slowly that loads keep up: what is compared is what makes way, not overload."""
    world = World(pinned, half_life)
    for number, model in enumerate(requests):
        world.at(number * 0.1, partial(world.request, f"m{model}"))
    world.run()
    assert world.served == len(requests)
    assert world.longest_s <= 0.1
    return world


@pytest.mark.parametrize(
    ("exponent", "pinned", "least_share"),
    [(1.0, [], 0.77), (1.4, [], 0.9), (1.4, ["m0", "m150"], 0.8)],
    ids=["zipf-1.0", "zipf-1.4", "pinned"],
)
def test_200_models_in_10_slots(exponent: float, pinned: list[str], least_share: float) -> None:
    requests = zipf(exponent, seed=7)
    share = replay(requests, pinned).hits / trace.optimal_hits(requests, SLOTS)
    assert least_share <= share <= 1.0


def test_the_least_popular_makes_way_and_with_a_half_life_of_zero_the_least_recently_used() -> None:
    requests = zipf(1.0, seed=7)
    least_recently_used = trace.lru_hits(requests, SLOTS)
    assert replay(requests, half_life=0).hits == least_recently_used
    assert replay(requests).hits > 1.25 * least_recently_used
