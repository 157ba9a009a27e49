"""How rollouts are carried out: by measurements of real versions, whatever happens to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from nereid.core.errors import InvalidArgument, NotFound
from nereid.core.traffic.rollout_plan import Rollout
from nereid.core.traffic.weights import make_traffic
from nereid_scheduler.control.rollouts.rollouts import Rollouts
from nereid_scheduler.control.rollouts.steps import Difference
from nereid_scheduler.control.sources.model_traffic import ModelTraffic
from nereid_scheduler.control.state.setting_records import SettingRecords
from nereid_scheduler.core.models.traffic_table import FileSetting
from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion
from nereid_scheduler.placement.models.ensemble_lifecycle import Ensembles
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.scheduler.samples import model_of
from tests.support.scheduler.world import TENSORS, served_model, served_version
from tests.support.waiting import until

PLAN = {"to": 4, "steps": [50, 100], "every_seconds": 0.001, "if": "errors<5%"}
MS = 1_000_000


def version(number: int) -> ServedVersion:
    runtime = ModelVersion(model_of(TENSORS), number, VersionContext(QueueLimits(0)))
    return served_version(number=number, runtime=runtime)


class Site:
    """A model m with versions 3 and 4, of which 3 is in service."""

    def __init__(self) -> None:
        self.old, self.new = version(3), version(4)
        self.catalogue = Catalogue([served_model("m", self.old, self.new)])
        self.events: list[str] = []
        ensembles = Ensembles(self.catalogue, lambda _served, _event: None)
        self.traffic = ModelTraffic(
            self.catalogue, ensembles, SettingRecords(None), lambda _: None, self._record
        )
        self.difference: Difference | None = None
        self.owned = True
        self.rollouts = self.process()

    def process(self) -> Rollouts:
        """What another process of the scheduler has."""
        return Rollouts(
            self.traffic,
            self.catalogue,
            lambda _name: self.owned,
            self._record,
            lambda _model, _version: self.difference,
            interval_s=0.001,
        )

    def _record(self, what: str, subject: str, detail: str = "", **_rest: Any) -> None:
        if what == "rollout":
            self.events.append(detail)

    def serve(self, requests: int = 1000) -> None:
        for served in (self.old, self.new):
            clients = served.ready_runtime.statistics.measure_clients()
            for _ in range(requests):
                clients.record_success(0, 5 * MS)

    @property
    def state(self) -> tuple[str, int]:
        rollout = self.traffic.rollout("m")
        assert isinstance(rollout, Rollout)
        return rollout.state, rollout.percent

    async def begin(self, **fields: Any) -> None:
        await self.traffic.set("m", make_traffic({3: 1}))
        await self.rollouts.begin("m", PLAN | fields, "alice")

    async def reach(self, *state: Any) -> None:
        def reached() -> bool:
            self.serve(200)
            return self.state == state

        await until(reached)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    made.rollouts.start()
    yield made
    await made.rollouts.close()


async def test_a_rollout_is_measured_step_by_step(site: Site) -> None:
    statistics = site.new.ready_runtime.statistics
    measured = statistics.measure_clients()
    await site.begin()
    await site.reach("done", 100)
    assert site.rollouts.ended == {("m", "done"): 1}
    await until(lambda: statistics.measure_clients() is not measured)
    document = site.rollouts.describe("m")
    assert (document["to"], document["percent"], document["rules"]) == (4, 100, [])


async def test_how_rules_stand_is_shown_while_they_wait(site: Site) -> None:
    await site.begin(every_seconds=600)
    wait = "0 of 20 requests have come"
    await until(lambda: site.rollouts.describe("m").get("waits_for") == wait)
    site.serve()
    await until(lambda: site.rollouts.describe("m")["rules"])
    assert "waits_for" not in site.rollouts.describe("m")
    (rule,) = site.rollouts.describe("m")["rules"]
    assert (rule["rule"], rule["is"]) == ("errors<5%", "holds")
    assert rule["figures"].startswith("0 of 1000 requests have failed, 0 of 1000")


async def test_another_process_goes_back_a_step_for_what_it_compares_with(site: Site) -> None:
    await site.begin(every_seconds=0.3)
    await site.reach("running", 100)
    await site.rollouts.close()
    site.rollouts = site.process()
    site.rollouts.start()
    site.events.clear()
    await site.reach("done", 100)
    assert [event.split(": ")[1] for event in site.events] == [
        "running, 50%",
        "running, 100%",
        "done, 100%",
    ]


async def test_a_version_that_is_not_ready_any_more_loses_its_requests(site: Site) -> None:
    await site.begin(every_seconds=600)
    site.new.life.begin_unload()
    await site.reach("back", 0)
    assert site.events[-1] == ("to version 4: back, 0%: at 50%: version 4 is UNLOADING")
    found = site.traffic.find("m")
    assert found is not None
    assert found.traffic == make_traffic({3: 1, 4: 0})


@pytest.mark.parametrize("which", ["old", "new"])
async def test_a_reload_measures_the_step_anew(site: Site, which: str) -> None:
    wait = "0 of 20 requests have come"
    await site.begin(every_seconds=600)
    await until(lambda: site.rollouts.describe("m").get("waits_for") == wait)
    site.serve()
    await until(lambda: site.rollouts.describe("m")["rules"])
    reloaded = version(3 if which == "old" else 4)
    setattr(site, which, reloaded)
    site.catalogue.set_model(served_model("m", site.old, site.new))
    await until(lambda: site.rollouts.describe("m").get("waits_for") == wait)
    assert site.state == ("running", 50)


async def test_a_reload_at_all_requests_goes_back_a_step_for_what_it_compares_with(
    site: Site,
) -> None:
    await site.begin(every_seconds=0.3)
    await site.reach("running", 100)
    await until(lambda: "waits_for" in site.rollouts.describe("m"))
    site.new = version(4)
    site.catalogue.set_model(served_model("m", site.old, site.new))
    site.events.clear()
    await site.reach("done", 100)
    assert [event.split(": ")[1] for event in site.events] == [
        "running, 50%",
        "running, 100%",
        "done, 100%",
    ]


async def test_a_rollout_that_could_not_go_back_waits(site: Site) -> None:
    await site.begin(**{"if": "p50<1ms"})
    site.old.life.begin_unload()
    waits_for = site.rollouts.describe("m")["waits_for"]
    assert "none of the versions that had the requests before (3) is ready" in waits_for
    looks = 0

    def looked() -> bool:
        nonlocal looks
        looks += 1
        site.serve(200)
        return looks > 20

    await until(looked)
    assert site.state == ("running", 50)
    site.catalogue.set_model(served_model("m", version(3), site.new))
    await site.reach("back", 0)


async def test_only_the_owner_of_a_model_carries_its_rollout_out(site: Site) -> None:
    site.owned = False
    await site.begin()
    site.serve()
    assert list(site.rollouts.not_over()) == []
    site.owned = True
    await site.reach("done", 100)


async def test_a_file_that_takes_the_model_over_stops_the_rollout(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await site.begin()
    site.traffic.set_file({"m": FileSetting(make_traffic({3: 1}))})

    def refused() -> bool:
        site.serve(200)
        return "rollout of model 'm' cannot go on" in caplog.text

    await until(refused)
    assert site.state == ("running", 50)


async def test_a_difference_needs_a_shadow(site: Site) -> None:
    with pytest.raises(InvalidArgument, match="needs a shadow that compares version 4"):
        await site.begin(**{"if": "difference<1e-3"})
    site.difference = Difference(0, 0)
    await site.begin(**{"if": "difference<1e-3"})
    site.difference = Difference(200, 100)
    await site.reach("back", 0)


async def test_what_cannot_be_begun_or_changed_is_refused(site: Site) -> None:
    with pytest.raises(InvalidArgument, match="'m' has no weights"):
        await site.rollouts.begin("m", PLAN, "")
    with pytest.raises(NotFound, match="has no rollout"):
        await site.rollouts.act("m", "pause", "")
    with pytest.raises(InvalidArgument, match="version 5 is not ready"):
        await site.begin(to=5)
    await site.begin(every_seconds=600)
    with pytest.raises(InvalidArgument, match="is running: abort it first"):
        await site.rollouts.begin("m", PLAN, "")
    with pytest.raises(InvalidArgument, match="expected pause, resume, abort"):
        await site.rollouts.act("m", "stop", "")
    with pytest.raises(InvalidArgument, match="is running"):
        await site.rollouts.act("m", "resume", "")
    await site.rollouts.act("m", "abort", "bob")
    assert site.state == ("aborted", 0)
    for action in ("pause", "resume", "abort"):
        with pytest.raises(InvalidArgument, match="is aborted"):
            await site.rollouts.act("m", action, "")
