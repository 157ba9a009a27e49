"""What a scheduler reports of what it has counted."""

from typing import Any, cast

from nereid.core.errors import Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.measurements.latencies import MetricsConfig
from nereid_scheduler.pages.counts_report import CountsReport
from nereid_scheduler.pages.metrics import SchedulerMetrics
from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.scheduler.samples import model_of
from tests.support.scheduler.world import serve

TENSORS = """
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [1] }
output { name: "Y" data_type: TYPE_FP32 dims: [1] }
"""


class World:
    def __init__(self) -> None:
        self.now_ns, self.monotonic_ns, self.failures = 1_000, 0, 0
        self.catalogue = Catalogue()
        absent = cast("Any", None)
        metrics = SchedulerMetrics(
            self.catalogue,
            absent,
            absent,
            (),
            MetricsConfig(),
            repositories=absent,
            state_failures=lambda: self.failures,
        )
        self.report = CountsReport(
            self.catalogue, metrics, lambda: self.now_ns, lambda: self.monotonic_ns
        )
        self.scheduler = self.change = 0

    def load(self, *, continues: bool) -> ServedVersion:
        runtime = ModelVersion(model_of(TENSORS), 1, VersionContext())
        served = serve(self.catalogue, runtime=runtime, continues=continues)
        served.record_load_times(0.0)
        return served

    def look(self) -> dict[str, pb.VersionCounts]:
        """By model, what has changed since the last look."""
        request = pb.CountsRequest()
        if self.change:
            request.seen.add(scheduler=self.scheduler, change=self.change)
        (counts,) = self.report.respond(request).schedulers
        self.scheduler, self.change = counts.scheduler, counts.change
        self.held = {each.id: each.number for each in counts.held}
        return {each.model: each for each in counts.changed}


def refuse(served: ServedVersion) -> ModelVersion:
    runtime = served.runtime
    assert isinstance(runtime, ModelVersion)
    runtime.statistics.refused += 1
    return runtime


async def test_only_what_has_counted_is_reported_again() -> None:
    it = World()
    served = it.load(continues=True)
    first = it.look()
    assert first.keys() == {"m", ""}
    assert first["m"].continues
    assert first["m"].statistics.name == "m"
    assert b"nv_inference_request_success" in first["m"].exposition
    # Gauges are not added up.
    assert b"nv_inference_pending_request_count" not in first["m"].exposition
    assert b"nereid_state_failures_total 0\n" in first[""].exposition
    assert it.look() == {}
    refuse(served)
    it.failures = 2
    second = it.look()
    assert second["m"].id == first["m"].id
    assert b'nereid_requests_refused_total{model="m",version="1"} 1\n' in second["m"].exposition
    assert b"nereid_state_failures_total 2\n" in second[""].exposition
    assert it.held == {each.id: each.number for each in second.values()}


async def test_a_model_that_is_loaded_anew_counts_anew_whatever_the_clock_says() -> None:
    it = World()
    it.load(continues=True)
    first = it.look()["m"]
    it.now_ns -= 500
    it.load(continues=False)
    second = it.look()["m"]
    assert first.id not in it.held
    assert second.id in it.held
    # Of another host, whose clock is ahead.
    ahead = pb.VersionCounts(id=1, model="m", version="1", loaded_ns=10**6, continues=True)
    it.report.respond(pb.CountsRequest(kept=[ahead]))
    it.load(continues=False)
    third = it.look()["m"]
    assert third.loaded_ns > second.loaded_ns
    assert it.held.keys() & {1, second.id, third.id} == {third.id}


async def test_an_unloaded_model_is_forgotten_and_one_that_was_handed_over_is_not() -> None:
    it = World()
    served = it.load(continues=True)
    kept = it.look()["m"]
    runtime = refuse(served)
    it.report.on_handed_over(served, runtime)
    served.runtime = None
    handed_over = it.look()["m"]
    assert (handed_over.id, handed_over.number) == (kept.id, 1)
    # It comes back, and is unloaded.
    back = it.load(continues=True)
    assert it.look()["m"].id != kept.id
    back.runtime = None
    assert it.look() == {}
    assert len(it.held) == 1
    runtime.fail_all(Unavailable("ended"))


async def test_at_its_end_it_reports_what_callers_may_not_have() -> None:
    it = World()
    served = it.load(continues=True)
    (last,) = it.report.last_response().schedulers
    assert {each.model for each in last.changed} == {"m", ""}
    # A clock that is set lets nobody know them.
    for hours in (5, -5, 5):
        it.now_ns += hours * 3600 * 10**9
        it.look()
    (last,) = it.report.last_response().schedulers
    assert {each.model for each in last.changed} == {"m", ""}
    for _ in range(2):
        it.monotonic_ns += 10**11
        it.look()
    (last,) = it.report.last_response().schedulers
    assert not last.changed
    refuse(served)
    (last,) = it.report.last_response().schedulers
    assert [each.number for each in last.changed] == [1]
