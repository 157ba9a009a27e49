"""Models that requests load, with executors and clients that the test plays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from nereid.core.errors import Internal, NereidError, Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.control.residency.on_demand import PARAMETER, OnDemandLoads
from nereid_scheduler.control.residency.policies.policy import Residency
from nereid_scheduler.control.residency.policies.popularity import Popularity
from nereid_scheduler.core.models.desired_models import Reason
from nereid_scheduler.core.models.lifecycle import LoadStatus, VersionState
from nereid_scheduler.placement.models.catalogue import Missing, OnDemand
from tests.support.scheduler.reconciler_world import ReconcilerWorld, ended, turns
from tests.support.scheduler.world import found
from tests.support.waiting import LIMIT_S, until

if TYPE_CHECKING:
    from collections.abc import Mapping

UP, FAILED = LoadStatus.UP, LoadStatus.FAILED


class Session:
    """An executor of this name that has joined."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hello = pb.Hello(name=name, backends=[""])
        self.hosted: dict[object, object] = {}


class World(ReconcilerWorld):
    """An instance of each model takes 60 bytes, with a budget: of 100."""

    def __init__(self, *names: str, budget: int = 0, timeout_s: float = 600.0) -> None:
        self.timeout_s = timeout_s
        self.budgets = {"cpu": budget} if budget else {}
        # By name: how many requests wait for its load.
        self.held: list[str] = []
        self.saved: list[Mapping[str, Any]] = []
        super().__init__(alone=False)
        self.loader.requests_done.set()
        if budget:
            self.loader.sessions = [Session("host")]
        self.on_demand.restore_sizes({each: {"cpu": 60} for each in names})
        for each in names:
            self.defer(each)

    def open_on_demand(self) -> OnDemandLoads:
        self.residency = Residency(self.budgets, self.desired.pending_loads)
        return OnDemandLoads(
            self.desired,
            self.catalogue,
            cast("Any", self.loader),
            self.residency,
            Popularity(60.0),
            enabled=True,
            timeout_s=self.timeout_s,
            held_models=lambda: self.held,
            record_sizes=self.record,
        )

    async def record(self, sizes: Mapping[str, Any]) -> None:
        self.saved.append(sizes)

    def defer(self, name: str, *steps: str, **rest: Any) -> None:
        self.repositories.models[name] = model = found(name, *steps, **rest)
        self.on_demand.defer(model)

    def request(self, name: str) -> bool:
        self.held.append(name)
        found = self.catalogue.resolve(name, "")
        if not isinstance(found, OnDemand):
            return False
        self.on_demand.request(found.model)
        return True

    async def load(self, name: str) -> None:
        assert self.request(name)
        assert (await self.loader.report(UP)).name == name
        await until(lambda: name not in self.desired.pending_loads)
        self.held.remove(name)

    def error(self, name: str) -> str:
        error = self.desired.on_demand[name].error
        return "" if error is None else error.message


async def test_the_first_request_begins_one_load() -> None:
    it = World("m")
    assert not it.request("other")
    assert isinstance(it.catalogue.resolve("m", "7"), Missing)
    assert it.request("m")
    assert it.request("m")
    assert (await it.loader.report(UP)).hosts is None
    await until(lambda: "m" not in it.desired.pending_loads)
    assert it.loader.changes
    assert it.on_demand.counts.loads == 1
    assert it.desired.on_demand["m"].since_ns
    # It is in service: there is no load to wait for.
    assert not it.request("m")
    assert it.on_demand.counts.loads == 1


async def test_what_is_loaded_on_demand() -> None:
    it = World("m")
    eager, wrong = found("eager"), found("wrong")
    eager.draft.parameters[PARAMETER].string_value = "false"
    wrong.draft.parameters[PARAMETER].string_value = "perhaps"
    assert not it.on_demand.defer(eager)
    assert it.on_demand.defer(wrong)
    assert not it.on_demand.defer(found("bad", error=Internal("bad")))
    await it.serve("served")
    assert not it.on_demand.defer(found("served"))
    await it.load("m")
    # One in memory is loaded anew like any other.
    assert not it.on_demand.defer(found("m"))
    it.on_demand.retain({"m"})
    assert [*it.desired.on_demand] == ["m"]


async def test_a_load_that_failed_is_tried_again_after_a_while() -> None:
    it = World("m")
    assert it.request("m")
    await it.loader.report(FAILED, "bad")
    await until(lambda: it.error("m"))
    with pytest.raises(Unavailable, match="version 1 is at UNAVAILABLE state: bad"):
        it.request("m")
    it.desired.on_demand["m"].failed_s = -1e9
    await it.load("m")
    assert it.error("m") == ""


async def test_calls_about_a_model_wait_until_it_is_in_service() -> None:
    it = World("m", "n")
    calls = [asyncio.create_task(it.on_demand.ensure("m", "")) for _ in range(2)]
    await it.loader.report(UP)
    await asyncio.wait_for(asyncio.gather(*calls), LIMIT_S)
    await it.on_demand.ensure("m", "")
    await it.on_demand.ensure("other", "")
    failing = asyncio.create_task(it.on_demand.ensure("n", ""))
    await it.loader.report(FAILED, "bad")
    with pytest.raises(NereidError, match="bad"):
        await asyncio.wait_for(failing, LIMIT_S)


@pytest.mark.parametrize("reason", [Reason.BY_NAME, Reason.UNLOADED])
async def test_what_clients_load_or_unload_is_not_loaded_on_demand_any_more(reason: Reason) -> None:
    it = World("m")
    assert it.request("m")
    asked = it.ask("m", reason)
    await it.loader.report(UP)
    assert await ended(asked) is None
    assert it.desired.on_demand == {}
    assert not it.request("m")


# ---- budgets


async def test_the_model_that_was_used_last_makes_way() -> None:
    it = World("old", "new", budget=100)
    await it.load("old")
    assert it.states("old") == [VersionState.READY]
    assert it.on_demand.hosts_of("old") == frozenset({"host"})
    await it.load("new")
    assert it.states("old") == [VersionState.UNAVAILABLE]
    assert it.on_demand.counts.unloads == 1


async def test_a_model_that_is_in_use_makes_way_when_it_is_idle() -> None:
    it = World("busy", "waits", budget=100)
    await it.load("busy")
    (served,) = it.catalogue.running("busy")
    cast("Any", served.runtime).in_use = True
    assert it.request("waits")
    await until(lambda: it.residency.waiting == ["waits"])
    cast("Any", served.runtime).in_use = False
    await it.loader.report(UP)
    await until(lambda: it.states("waits") == [VersionState.READY])


async def test_a_load_that_nobody_waits_for_any_more_is_given_up() -> None:
    it = World("busy", "given_up", budget=100)
    await it.load("busy")
    it.held.append("busy")
    assert it.request("given_up")
    await until(lambda: it.residency.waiting)
    it.held.remove("given_up")
    await until(lambda: not it.residency.waiting)
    assert "given_up" not in it.desired.pending_loads
    assert it.states("busy") == [VersionState.READY]


async def test_a_model_that_fits_nowhere_is_refused() -> None:
    it = World("m", budget=50)
    assert it.request("m")
    await until(lambda: it.error("m"))
    assert it.error("m").startswith("model 'm' cannot be loaded: ")


async def test_another_executor_loads_what_a_lost_one_had_if_requests_need_it() -> None:
    it = World("idle", "busy", budget=200)
    for each in ("idle", "busy"):
        await it.load(each)
    (served,) = it.catalogue.running("busy")
    cast("Any", served.runtime).in_use = True
    it.loader.sessions = [Session("other")]
    it.on_demand.on_executors()
    await until(lambda: it.loader.moved)
    assert it.loader.moved == [("busy", frozenset({"other"}))]
    await until(lambda: it.states("idle") == [VersionState.UNAVAILABLE])


async def test_a_model_of_a_lost_executor_is_released_once_nobody_uses_it() -> None:
    it = World("m", budget=100)
    await it.load("m")
    (served,) = it.catalogue.running("m")
    cast("Any", served.runtime).in_use = True
    it.loader.sessions = []
    it.on_demand.on_executors()
    await until(lambda: it.residency.waiting == ["m"])
    assert it.states("m") == [VersionState.READY]
    cast("Any", served.runtime).in_use = False
    await until(lambda: it.states("m") == [VersionState.UNAVAILABLE])
    assert "m" not in it.desired.pending_loads


async def test_an_executor_that_joins_is_tried_after_failures_elsewhere() -> None:
    it = World("m", budget=100)
    it.loader.sessions = []
    it.on_demand.on_executors()
    assert it.request("m")
    await until(lambda: it.residency.waiting == ["m"])
    it.loader.sessions = [Session("host")]
    it.on_demand.on_executors()
    assert (await it.loader.report(UP)).hosts == frozenset({"host"})


# ---- ensembles


async def test_an_ensemble_is_loaded_after_the_models_of_its_steps() -> None:
    it = World("a", "b")
    it.defer("inner", "a")
    it.defer("outer", "inner", "b")
    assert it.request("outer")
    loaded = [(await it.loader.report(UP)).name for _ in range(4)]
    assert sorted(loaded[:2]) == ["a", "b"]
    assert loaded[2:] == ["inner", "outer"]
    await until(lambda: "outer" not in it.desired.pending_loads)
    assert it.error("outer") == ""


async def test_an_ensemble_fails_with_the_model_of_a_step() -> None:
    it = World("a")
    it.defer("e", "a")
    assert it.request("e")
    await it.loader.report(FAILED, "bad")
    await until(lambda: it.error("e"))
    assert "bad" in it.error("e")


async def test_an_ensemble_whose_own_load_fails() -> None:
    it = World("a")
    it.defer("e", "a")
    assert it.request("e")
    await it.loader.report(UP)
    await it.loader.report(FAILED, "bad")
    await until(lambda: it.error("e"))
    assert "bad" in it.error("e")


async def test_an_ensemble_whose_models_do_not_fit_together_is_refused() -> None:
    it = World("a", "b", budget=100)
    it.defer("e", "a", "b")
    assert it.request("e")
    await it.loader.report(UP)
    await until(lambda: it.error("e"))
    assert it.error("e") == "the models of ensemble 'e' do not fit the memory budget together"


async def test_an_ensemble_waits_no_longer_than_the_limit() -> None:
    it = World("a", timeout_s=0.01)
    it.defer("e", "a")
    assert it.request("e")
    await until(lambda: it.error("e"))
    assert it.error("e") == "the models of ensemble 'e' were not loaded in 0.01 s"


async def test_the_end_cancels_what_is_pending() -> None:
    it = World("a", budget=100)
    it.defer("e", "a")
    assert it.request("e")
    await turns()
    await it.on_demand.close()
    assert "e" in it.desired.pending_loads
