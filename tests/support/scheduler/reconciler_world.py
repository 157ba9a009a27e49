"""A reconciler with a loader, repositories and sources that the test plays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from nereid.core.errors import Internal, NereidError
from nereid.timeline.event_log import EventLog
from nereid_scheduler.control.outcomes import ask_for
from nereid_scheduler.control.reconciler.reconciler import Reconciler, Sources
from nereid_scheduler.control.residency.on_demand import OnDemandLoads
from nereid_scheduler.control.residency.policies.policy import Residency
from nereid_scheduler.control.residency.policies.popularity import Popularity
from nereid_scheduler.control.rules import ModelControlRules
from nereid_scheduler.core.models.desired_models import DesiredModels, Reason
from nereid_scheduler.core.models.found_model import FoundModel
from nereid_scheduler.core.models.lifecycle import LoadStatus, VersionState
from nereid_scheduler.core.models.model_record import ModelRecord
from nereid_scheduler.core.models.overrides import Override
from nereid_scheduler.placement.loads.load_waiters import LoadWaiters
from nereid_scheduler.placement.models.catalogue import Catalogue, FoundName, ServedVersion
from tests.support.scheduler.world import found
from tests.support.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from nereid_scheduler.control.outcomes import Outcome


class FakeRuntime:
    """The part of a version that tells its use."""

    def __init__(self) -> None:
        self.in_use = False
        self.statistics = self.success = self.fail = self
        self.last_used_ns = self.count = 0


class FakeLoader:
    """Executors load and finish requests when the test says so."""

    def __init__(self) -> None:
        self.waiters = LoadWaiters(lambda served: served.life.load_finished)
        self.begun: asyncio.Queue[ServedVersion] = asyncio.Queue()
        self.requests_done = asyncio.Event()
        self.changes = 0
        self.limits_s: list[float] = []
        self.versions: list[ServedVersion] = []
        # The executors that have joined.
        self.sessions: list[Any] = []
        # Versions that were moved to other executors, and where to.
        self.moved: list[tuple[str, frozenset[str]]] = []
        self.events = EventLog()
        self.record_event = self.events.record

    def load(self, served: ServedVersion) -> None:
        served.life.await_executor()
        self.versions.append(served)
        self.begun.put_nowait(served)

    def load_on(self, served: ServedVersion, hosts: frozenset[str]) -> None:
        self.moved.append((served.name, hosts))

    def unload(self, served: ServedVersion) -> Coroutine[None, None, None]:
        served.life.begin_unload()
        self.waiters.notify_all()
        return self._end_unload(served)

    def hand_over(self, served: ServedVersion, limit_s: float) -> Coroutine[None, None, None]:
        self.limits_s.append(limit_s)
        return self.unload(served)

    def unload_now(self, served: ServedVersion) -> None:
        served.life.end_unload()
        self.versions.remove(served)

    async def _end_unload(self, served: ServedVersion) -> None:
        await self.requests_done.wait()
        self.unload_now(served)

    def notify_change(self) -> None:
        self.changes += 1

    async def report(self, standing: LoadStatus, reason: str = "") -> ServedVersion:
        """An executor has loaded, or failed to load, the version whose load begins next."""
        served = await asyncio.wait_for(self.begun.get(), LIMIT_S)
        served.runtime = cast("Any", FakeRuntime())
        served.life.report("executor", standing, reason)
        self.waiters.notify_all()
        return served


class FakeRepositories:
    """Errors in place of models are raised."""

    namespacing = False
    paths = ("/models",)

    def __init__(self) -> None:
        self.models: dict[str, FoundModel | Exception] = {}

    def scan(self) -> list[FoundModel]:
        return [self.require(each) for each in self.models]

    def names(self) -> dict[str, FoundName]:
        return {each.name: FoundName(each.name) for each in self.scan()}

    def plain_name(self, name: str) -> str:
        return name

    def require(
        self,
        name: str,
        override: Override | None = None,
        versions: tuple[int, ...] | None = None,
    ) -> FoundModel:
        model = self.models.get(name, FoundModel(name, error=Internal("no such model")))
        if isinstance(model, Exception):
            raise model
        if override is None:
            return model
        directory = _Directory(Path("/written"))
        return replace(model, override_directory=cast("Any", directory))


class _Directory(NamedTuple):
    path: Path


class FakeRecords:
    """A RecordedModels, and the ModelRecords that it reads."""

    def __init__(self) -> None:
        self.records = self
        self.known: dict[str, ModelRecord] | Exception = {}
        self.readable = asyncio.Event()
        self.readable.set()
        self.reads = asyncio.Event()
        self.files = found("m")
        self.written: list[tuple[object, ...]] = []

    async def read_again(self) -> dict[str, ModelRecord]:
        await self._read()
        if isinstance(self.known, Exception):
            raise self.known
        return self.known

    async def find_outlines(self, records: Iterable[ModelRecord]) -> dict[str, FoundModel]:
        return {each.name: found(each.name) for each in records}

    async def find(self, record: ModelRecord) -> FoundModel:
        await self._read()
        return replace(self.files, name=record.name)

    async def _read(self) -> None:
        self.reads.set()
        await self.readable.wait()

    def last_files(self, name: str) -> bool:
        return name == "brought"

    async def record_request(self, name: str) -> None:
        self.written.append(("requested", name))

    async def record_load(
        self,
        name: str,
        override: Override | None,
        *,
        by_name: bool,
        versions: tuple[int, ...] | None = None,
    ) -> None:
        directory = None if override is None else override.directory
        self.written.append(("loaded", name, directory, by_name))

    async def record_unload(self, name: str, *, kept: bool) -> None:
        self.written.append(("unloaded", name, kept))


class FakeMoves:
    """One of several schedulers, which owns all models but those that the test takes away."""

    def __init__(self) -> None:
        self.away: set[str] = set()

    def owns(self, name: str) -> bool:
        return name not in self.away

    def select(self, models: list[FoundModel]) -> list[FoundModel]:
        return [each for each in models if self.owns(each.name)]


class FakeOnDemand:
    enabled = True

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        # Models that requests load, those of them that were found, and all that were found last.
        self.lazy: set[str] = set()
        self.deferred: list[str] = []
        self.retained: set[str] = set()

    def defer(self, model: FoundModel) -> bool:
        if model.name in self.lazy:
            self.deferred.append(model.name)
        return model.name in self.lazy

    def retain(self, names: set[str]) -> None:
        self.retained = names

    def forget(self, name: str) -> None:
        self.calls.append(("forget", name))

    def on_reloaded(self, name: str) -> None:
        self.calls.append(("reloaded", name))

    def hosts_of(self, _: str) -> frozenset[str]:
        return frozenset({"host"})


class ReconcilerWorld:
    def __init__(self, *, alone: bool = True, mode: str = "explicit", **rules: Any) -> None:
        """alone: it has none of the sources that only some schedulers have. rules: of model
        control.
        """
        self.desired = DesiredModels(on_due=self._reconcile_soon)
        self.catalogue = Catalogue(desired=self.desired)
        self.loader = FakeLoader()
        self.repositories = FakeRepositories()
        self.records, self.moves, self.on_demand = FakeRecords(), FakeMoves(), self.open_on_demand()
        loader = cast("Any", self.loader)
        nothing = OnDemandLoads(self.desired, self.catalogue, loader, Residency({}), Popularity(0))
        parts: Any = (nothing,) if alone else (self.on_demand, self.records, self.moves)
        self.rules = ModelControlRules(mode, hand_over_limit_s=7, **rules)
        self.sources = Sources(*parts)
        self.reconciler = Reconciler(
            self.desired,
            self.catalogue,
            loader,
            cast("Any", self.repositories),
            self.rules,
            self.sources,
        )

    def open_on_demand(self) -> Any:
        return FakeOnDemand()

    def _reconcile_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self.reconciler.reconcile)

    def ask(
        self, name: str, reason: Reason, model: FoundModel | None = None, **rest: Any
    ) -> Outcome:
        return ask_for(self.desired, name, reason, found=model, **rest)

    async def serve(self, *names: str) -> None:
        for name in names:
            outcome = self.ask(name, Reason.INITIAL, found(name))
            await self.loader.report(LoadStatus.UP)
            assert await ended(outcome) is None

    def states(self, name: str) -> list[VersionState]:
        model = self.catalogue.model(name)
        return [] if model is None else [each.life.state for each in model.versions.values()]


async def ended(outcome: Outcome) -> NereidError | None:
    return await asyncio.wait_for(outcome, LIMIT_S)


async def turns() -> None:
    """Until all that can go on without the test has done so."""
    for _ in range(20):
        await asyncio.sleep(0)
