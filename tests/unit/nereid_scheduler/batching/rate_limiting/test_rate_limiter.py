"""Who executes next: order, shares, and what is never exceeded, against a model of the pools."""

from collections import Counter, deque
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nereid.model_config import RateLimit, ResourceNeed
from nereid_scheduler.batching.rate_limiting.rate_limiter import RateLimiter
from nereid_scheduler.core.resources import (
    Device,
    Pool,
    ResourceLimit,
    Resources,
)

HOSTS = (Device("h", 0), Device("h", 1), Device("i", 0))


class World:
    """A limiter whose turns run when asked."""

    def __init__(self, *limits: str) -> None:
        self.turns: deque[Callable[[], None]] = deque()
        resources = Resources(map(ResourceLimit.parse, limits))
        self.limiter: RateLimiter[str] = RateLimiter(resources, self.turns.append)
        self.granted: list[str] = []

    def add(self, name: str, *needs: str, priority: int = 1, device: Device = HOSTS[0]) -> None:
        """Needs like R2; G… is global."""
        resources = tuple(ResourceNeed(n[0], n[0] == "G", int(n[1:])) for n in needs)
        self.limiter.add_instance(name, RateLimit(resources, priority), device)

    def request(self, *names: str) -> list[str]:
        for name in names:
            self.limiter.request(name, self.accept)
        return self.turn()

    def accept(self, name: str) -> bool:
        self.granted.append(name)
        return True

    def release(self, *names: str) -> list[str]:
        for name in names:
            self.limiter.release(name)
        return self.turn()

    def turn(self) -> list[str]:
        while self.turns:
            self.turns.popleft()()
        granted = [*self.granted]
        self.granted.clear()
        return granted


def test_one_at_a_time_by_default() -> None:
    it = World()
    for name in "abc":
        it.add(name, "R2")
    it.add("free")
    assert it.request("a", "b", "free") == ["a", "free"]
    assert it.request("a", "b", "c") == []
    assert it.release("a") == ["b"]
    assert it.release("b", "b") == ["c"]
    assert it.limiter.used(Pool("R", HOSTS[0])) == 2
    assert set(it.limiter.holders()) == {"free", "c"}


def test_devices_have_pools_of_their_own_and_the_mesh_has_one() -> None:
    it = World()
    for index, device in enumerate(HOSTS):
        it.add(f"local{index}", "R1", device=device)
        it.add(f"global{index}", "G1", device=device)
    assert it.request(*(f"local{index}" for index in range(3))) == ["local0", "local1", "local2"]
    assert it.request(*(f"global{index}" for index in range(3))) == ["global0"]


def test_one_that_waits_for_much_is_not_starved_by_those_that_need_little() -> None:
    it = World("R:2")
    it.add("large", "R2")
    it.add("one", "R1")
    it.add("two", "R1")
    it.add("other", "S0")
    assert it.request("one", "two") == ["one", "two"]
    assert it.request("large") == []
    it.limiter.begin_execution("one")
    it.release("one")
    # One unit is free, and kept for the large one.
    assert it.request("one", "other") == ["other"]
    assert it.release("two") == ["large"]
    assert it.release("large") == ["one"]


def test_an_instance_that_needs_more_makes_more_by_default() -> None:
    it = World()
    it.add("a", "R1")
    it.add("b", "R1")
    assert it.request("a", "b") == ["a"]
    it.add("large", "R2")
    assert it.turn() == ["b"]


def test_a_lost_instance_leaves_what_it_held_and_its_place() -> None:
    it = World()
    for name in "abc":
        it.add(name, "R1")
    assert it.request("a", "b", "c") == ["a"]
    it.limiter.remove_instance("b")
    it.limiter.remove_instance("a")
    it.limiter.remove_instance("a")
    assert it.turn() == ["c"]
    it.limiter.begin_execution("a")
    it.limiter.release("a")
    assert it.request("a") == []
    it.limiter.remove_instance("c")
    assert not it.limiter.resources.capacity(Pool("R", HOSTS[0]))


def test_one_that_wants_nothing_any_more_is_passed_over() -> None:
    it = World()
    it.add("a", "R1")
    it.add("b", "R1")
    it.limiter.request("a", lambda _: False)
    assert it.request("b") == ["b"]
    assert list(it.limiter.holders()) == ["b"]


def test_the_last_place_of_a_queue_may_be_void() -> None:
    it = World()
    it.add("a", "R1")
    it.limiter.request("a", it.accept)
    it.limiter.release("a")
    assert it.turn() == []
    assert it.request("a") == ["a"]


@pytest.mark.parametrize("priorities", [(1, 2), (1, 4), (2, 3, 6), (1, 1, 1)])
def test_shares_are_the_inverse_of_priorities(priorities: tuple[int, ...]) -> None:
    it = World()
    names = [f"{index}" for index in range(len(priorities))]
    for name, priority in zip(names, priorities, strict=True):
        it.add(name, "R1", priority=priority)
    counts = Counter[str]()
    (running,) = it.request(*names)
    for _ in range(1200):
        counts[running] += 1
        it.limiter.begin_execution(running)
        it.limiter.release(running)
        (running,) = it.request(running)
    total = sum(1 / priority for priority in priorities)
    for name, priority in zip(names, priorities, strict=True):
        assert counts[name] == pytest.approx(1200 / priority / total, abs=2)


def test_one_that_was_idle_does_not_catch_up() -> None:
    it = World()
    it.add("a", "R1")
    it.add("b", "R1")
    for _ in range(100):
        assert it.request("a") == ["a"]
        it.limiter.begin_execution("a")
        it.release("a")
    order = []
    (running,) = it.request("b", "a")
    for _ in range(6):
        order.append(running)
        it.limiter.begin_execution(running)
        it.limiter.release(running)
        (running,) = it.request(running)
    assert Counter(order) == {"a": 3, "b": 3}


class Pools(RuleBasedStateMachine):
    """Random requests, executions and deaths."""

    def __init__(self) -> None:
        super().__init__()
        self.it = World("R:3", "S:2", "G:4")
        self.alive: dict[str, dict[Pool, int]] = {}
        self.held: set[str] = set()
        self.waiting: set[str] = set()
        self.number = 0

    @rule(
        r=st.integers(0, 3), s=st.integers(0, 2), g=st.integers(0, 4),
        priority=st.integers(1, 4), device=st.sampled_from(HOSTS),
    )  # fmt: skip
    def add(self, r: int, s: int, g: int, priority: int, device: Device) -> None:
        self.number += 1
        name = f"i{self.number}"
        self.it.add(name, f"R{r}", f"S{s}", f"G{g}", priority=priority, device=device)
        pools = {Pool("R", device): r, Pool("S", device): s, Pool("G", None): g}
        self.alive[name] = {pool: count for pool, count in pools.items() if count}

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def request(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        if name not in self.held:
            self.waiting.add(name)
        self.it.limiter.request(name, self.it.accept)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), executed=st.booleans())
    def release(self, data: st.DataObject, executed: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        if executed:
            self.it.limiter.begin_execution(name)
        self.held.discard(name)
        self.it.limiter.release(name)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.held.discard(name)
        self.waiting.discard(name)
        del self.alive[name]
        self.it.limiter.remove_instance(name)

    @rule()
    def turn(self) -> None:
        granted = self.it.turn()
        assert len(granted) == len({*granted})
        assert {*granted} <= self.waiting
        self.waiting -= {*granted}
        self.held |= {*granted}
        wanted = Counter[Pool]()
        for name in self.waiting:
            wanted.update(self.alive[name].keys())
        for name in self.waiting:
            # Some pool is short, or others want it as well.
            assert any(
                wanted[pool] > 1
                or self.it.limiter.used(pool) + count > self.it.limiter.resources.capacity(pool)
                for pool, count in self.alive[name].items()
            )

    @invariant()
    def nothing_is_exceeded(self) -> None:
        held = self.held | {*self.it.granted}
        assert {*self.it.limiter.holders()} == held
        used = Counter[Pool]()
        for name in held:
            used.update(self.alive[name])
        for pool, count in used.items():
            assert count == self.it.limiter.used(pool) <= self.it.limiter.resources.capacity(pool)

    def teardown(self) -> None:
        """Nothing is stuck: when everything held is released, all that wait have their turn."""
        self.turn()
        for _ in range(2 * len(self.alive) + 1):
            for name in sorted(self.held):
                self.it.limiter.release(name)
            self.held.clear()
            self.turn()
        assert not self.waiting


TestPools = Pools.TestCase
