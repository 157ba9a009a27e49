"""What models in service are used for, as it is read from them."""

import pytest

from nereid.model_config import parse_config
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.control.residency.policies.policy import Usage
from nereid_scheduler.control.residency.policies.popularity import Popularity
from nereid_scheduler.control.residency.use import ModelUse
from nereid_scheduler.core.measurements.statistics import ModelStatistics
from nereid_scheduler.core.models.desired_models import DesiredModels
from nereid_scheduler.core.models.found_model import FoundModel
from nereid_scheduler.core.models.on_demand_models import OnDemandModel
from nereid_scheduler.core.requests.entry import Batch
from nereid_scheduler.core.requests.execution import Execution
from nereid_scheduler.placement.loads.loader import Loader
from nereid_scheduler.versions.model_version import ModelVersion
from tests.support.scheduler.samples import entry_of
from tests.support.scheduler.world import CommandStream, LoaderWorld

WRITTEN = """
backend: "onnxruntime"
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
"""


class Stream(CommandStream):
    """Loads come up at once."""

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        self._loader = loader

    def send(self, message: bytes, at_once: bool = False) -> None:
        command = pb.ExecutorCommand.FromString(message)
        if command.HasField("load"):
            number = command.load.instance
            placed = self._loader.streams.instance_opened(number, Stream(self._loader))
            assert placed is not None
            placed.session.hosted[placed.served].memory[number] = {"cpu": 5}


class World(LoaderWorld):
    """Models in service on one executor, those of on_demand as their requests have loaded them."""

    def __init__(self, *names: str, on_demand: tuple[str, ...] = ()) -> None:
        desired = DesiredModels()
        self.on_demand = desired.on_demand
        super().__init__(completes=True, desired=desired)
        self.held: list[str] = []
        self.join(stream=Stream(self.loader))
        for name in names:
            self.load(name, WRITTEN)
        for name in on_demand:
            self.on_demand[name] = OnDemandModel(FoundModel(name))
        self.use = ModelUse(
            self.catalogue, self.loader, self.on_demand, lambda: self.held, Popularity(4)
        )

    def runtime(self, name: str) -> ModelVersion:
        model = self.catalogue.model(name)
        assert model is not None
        runtime = model.versions[1].runtime
        assert runtime is not None
        return runtime


def execute(statistics: ModelStatistics, finished_ns: int, epoch_ms: int) -> None:
    batch = Batch([entry_of(1)], 1, "full")
    statistics.record_execution(batch, Execution(0, finished_ns, epoch_ms, 1, 1, 1))


async def test_the_last_use_is_an_execution_a_hit_of_the_cache_or_the_load() -> None:
    it = World("a", "b", "c", on_demand=("a", "b", "c"))
    it.on_demand["c"].since_ns = 7
    # The wall clock is set back by a day between the executions.
    execute(it.runtime("b").statistics, finished_ns=1000, epoch_ms=86_400_000)
    execute(it.runtime("a").statistics, finished_ns=5000, epoch_ms=0)
    used = it.use.usages(())
    assert used["a"].last_used > used["b"].last_used > 7
    assert used["c"] == Usage(7, busy=False)
    it.runtime("b").statistics.record_cache_hit(entry_of(1), 9000)
    used = it.use.usages(["c"])
    assert used["b"].last_used > used["a"].last_used
    assert [name for name, usage in used.items() if usage.busy] == ["c"]


async def test_popularity_is_of_all_requests_for_models_on_demand() -> None:
    it = World("a", "b", "c", on_demand=("a", "b"))
    it.runtime("a").statistics.success.count = 2
    it.runtime("a").statistics.fail.count = 3
    it.runtime("b").statistics.success.count = 1
    it.runtime("c").statistics.success.count = 1000
    used = it.use.usages(())
    assert used["a"].popularity == pytest.approx(5 * used["b"].popularity)
    assert used["b"].popularity > 0.5
    assert used["c"].popularity == 0
    assert it.use.usages(()) == used


async def test_what_is_in_service_and_what_it_takes() -> None:
    it = World("a", "b", on_demand=("a", "out"))
    assert it.use.others() == {"b"}
    assert (it.use.is_ready("a"), it.use.is_ready("out")) == (True, False)
    assert (it.catalogue.is_served("b"), it.catalogue.is_served("out")) == (True, False)
    assert not it.use.in_use("a")
    assert it.use.memory("a") == {"e": {"cpu": [5]}}
    assert it.use.memory("out") == {}
    it.held = ["out", "out", "unknown"]
    assert it.use.held() == {"out": 2}


async def test_what_an_ensemble_needs_is_busy() -> None:
    it = World("a", "b", on_demand=("a", "b"))
    outer, inner = (parse_config('platform: "ensemble"', model_name=name) for name in ("o", "i"))
    outer.ensemble_scheduling.step.add(model_name="i")
    inner.ensemble_scheduling.step.add(model_name="b")
    for name, draft in (("o", outer), ("i", inner)):
        it.on_demand[name] = OnDemandModel(FoundModel(name, draft=draft))
    used = it.use.usages(["o"])
    assert {name for name, usage in used.items() if usage.busy} == {"o", "i", "b"}
    assert not used["a"].busy
