"""Loads models at their first requests, and unloads models that make way for others.

A request whose model is in service does not reach this module.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.config.flags import boolean
from nereid.core.errors import InvalidArgument, NereidError, Unavailable
from nereid.timeline.records import MEMORY, Wait
from nereid_scheduler.control.residency.ensemble_loads import AwaitedModels, EnsembleLoads
from nereid_scheduler.control.residency.policies.policy import Status
from nereid_scheduler.control.residency.use import ModelUse
from nereid_scheduler.core.instances.instance_places import gpu_ids
from nereid_scheduler.core.measurements.timeline import NO_TIMELINE
from nereid_scheduler.core.memory.sizes import ModelSizes
from nereid_scheduler.core.models.dependencies import is_ensemble
from nereid_scheduler.core.models.desired_models import Why

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Iterable, Mapping

    from nereid.pb import model_config_pb2
    from nereid_scheduler.control.outcomes import Outcome
    from nereid_scheduler.control.residency.policies.policy import Actions, Load, Residency, Usage
    from nereid_scheduler.control.residency.policies.popularity import Popularity
    from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
    from nereid_scheduler.core.models.desired_models import DesiredModels, OnDemandModel
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.placement.loads.loader import Loader
    from nereid_scheduler.placement.models.catalogue import Catalogue

_log = logging.getLogger(__name__)

PARAMETER: Final = "lazy_loading"
_RETRY_S: Final = 0.05
# If nothing was loaded or unloaded for this many seconds, popular idle models may make way even
# though less popular ones are in use.
_STALLED_S: Final = 2.0
# Pause after a failed load, since each attempt costs an executor seconds.
_FAILED_S: Final = 5.0


@dataclass(slots=True)
class OnDemandCounts:
    """Loads that requests have started, and unloads that made way for models."""

    loads: int = 0
    unloads: int = 0


class OnDemand:
    """The models of one scheduler that are loaded on demand."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        desired: DesiredModels,
        catalogue: Catalogue,
        loader: Loader,
        *,
        residency: Residency,
        popularity: Popularity,
        timeout_s: float,
        held_models: Callable[[], Iterable[str]],
        record_sizes: Callable[[Mapping[str, Any]], Coroutine[Any, Any, None]],
        timeline: SchedulerTimeline = NO_TIMELINE,
    ) -> None:
        """held_models: returns the model of each request that waits for a load."""
        self._desired = desired
        self._models = desired.on_demand
        self._catalogue = catalogue
        self._loader = loader
        self._timeout_s = timeout_s
        self._record_sizes = record_sizes
        self._residency = residency
        self._budgets = residency.budgets
        self._sizes = ModelSizes()
        self.counts = OnDemandCounts()
        self._use = ModelUse(catalogue, loader, self._models, held_models, popularity)
        self._executors: set[str] = set()
        self._loads: dict[str, Outcome] = {}
        # Models that calls and ensembles are waiting for. Requests wait in the load queue.
        self._awaited = AwaitedModels()
        self._ensembles = EnsembleLoads(
            desired, residency, self._use, self._want, self._awaited, timeout_s
        )
        self._retry: asyncio.TimerHandle | None = None
        # Monotonic time of the last load or unload, or of the start of the first wait for memory.
        self._moved_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._timeline = timeline
        self._waiting_since_ns: dict[str, int] = {}

    def restore_sizes(self, saved: Mapping[str, Any]) -> None:
        """Use the sizes that an earlier scheduler has measured."""
        self._sizes = ModelSizes(saved)

    async def close(self) -> None:
        """Cancel pending work. The models stay as they are."""
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def defer(self, found: FoundModel) -> bool:
        """Leave a model to its first request; return False if the model must be loaded now."""
        name = found.name
        if found.error is not None or not _is_lazy(found.draft):
            return False
        if name not in self._models and self._catalogue.is_known(name):
            return False
        self._desired.defer(found)
        # A model that is in memory is reloaded now, like any other model.
        return not self._use.is_ready(name)

    def hosts_of(self, name: str) -> frozenset[str] | None:
        """Return the executors on which a model is reloaded; `None` means all executors."""
        if not self._budgets or name not in self._models:
            return None
        return frozenset(self._residency.executors_of(name)) or None

    def forget(self, name: str) -> None:
        """Stop handling a model that was deleted, or that a client loaded or unloaded for good."""
        self._desired.end_deferring(name)
        actions = self._residency.forget(name, self._usages())
        if name in self._loads:
            self._end_load(name, None)
        self._act(actions)

    def on_reloaded(self, name: str) -> None:
        """Measure a model that was reloaded in memory, since its size may have changed."""
        if self._residency.status(name) is Status.RESIDENT:
            self._act(self._residency.loaded(name, self._measure(name), self._usages()))

    def retain(self, names: Container[str]) -> None:
        """Forget models that are not in `names`: no repository has them any more."""
        for name in [known for known in self._models if known not in names]:
            self.forget(name)

    def request(self, name: str, number: int) -> bool:
        """Begin a load if a request needs it; return whether the request waits for a load.

        number: -1 is the latest version. Raises NereidError if a load has failed a short time ago.
        """
        known = self._catalogue.find_on_demand(name)
        if known is None or not known.has(number):
            return False
        if known.error is not None:
            if time.monotonic() - known.failed_s < _FAILED_S:
                raise known.error.with_traceback(None)
            known.error = None
        self._want(known)
        return True

    async def ensure(self, name: str, number: int) -> None:
        """Load a model on demand and wait for it; raise NereidError if that fails."""
        model = self._catalogue.find_on_demand(name)
        if model is None or self._use.is_ready(model.name) or not self.request(name, number):
            return
        load = self._loads.get(model.name)
        if load is not None:
            with self._awaited.adding([model.name]):
                await asyncio.wait([load], timeout=self._timeout_s)
        if model.error is not None:
            raise model.error.with_traceback(None)

    def on_executors(self) -> None:
        """Update the set of executors, since some have joined or left."""
        self._sync_executors()

    def _want(self, known: OnDemandModel) -> Outcome | None:
        name = known.name
        if name in self._loads:
            return self._loads[name]
        if self._use.is_ready(name):
            return None
        known.wanted = True
        self.counts.loads += 1
        load = self._loads[name] = asyncio.get_running_loop().create_future()
        _log.info("model '%s' is loaded on demand", name)
        if is_ensemble(known.found.draft):
            self._spawn(self._load_ensemble(name))
        else:
            self._spawn(self._place_model(name))
        return load

    async def _load_ensemble(self, name: str) -> None:
        self._end_load(name, await self._ensembles.load(name))

    async def _place_model(self, name: str) -> None:
        known, file_bytes = self._models.get(name), 0
        if known is not None and self._budgets and not self._sizes.knows(name):
            paths = [known.found.version_path(version) for version in known.found.versions]
            file_bytes = await asyncio.to_thread(_file_bytes, paths)
        if name not in self._models:
            # The model was forgotten meanwhile.
            return
        self._sync_executors()
        needs = self._needs(name, file_bytes)
        if not self._residency.waiting:
            self._moved_s = time.monotonic()
        self._act(self._residency.request(name, needs, self._usages()))

    def _needs(self, name: str, file_bytes: int) -> dict[str, dict[str, int]]:
        """Return the bytes that a model needs, by executor and device; empty without budgets."""
        if not self._budgets:
            return {}
        found = self._models[name].found
        needs: dict[str, dict[str, int]] = {}
        versions = max(1, len(found.versions))
        for session in self._loader.sessions:
            if found.draft.backend not in session.hello.backends:
                continue
            try:
                gpus = gpu_ids(session.hello)
                sizes = self._sizes.needs(name, found.draft, gpus, file_bytes // versions)
            except InvalidArgument:
                continue
            needs[session.name] = {device: size * versions for device, size in sizes.items()}
        if not needs and self._loader.sessions:
            # The load itself will report what is wrong with the configuration.
            needs = {session.name: {} for session in self._loader.sessions}
        return needs

    def _begin_load(self, load: Load) -> None:
        hosts = frozenset([load.executor]) if load.executor else None
        on_loaded = partial(self._on_loaded, load.model)
        self._desired.add(load.model, Why.ON_DEMAND, hosts=hosts, on_end=on_loaded)

    def _on_loaded(self, name: str, error: NereidError | None) -> None:
        self._moved_s = time.monotonic()
        if self._residency.status(name) is not Status.LOADING:
            # The model was forgotten, or its executor was lost and another one will load it.
            return
        if error is not None and not self._use.is_ready(name):
            self._end_load(name, error)
            self._act(self._residency.load_failed(name, self._usages()))
            # Otherwise an executor that joins would load the model without regard to memory.
            self._desired.add(name, Why.RELEASED)
            return
        if name in self._models:
            self._models[name].since_ms = time.time() * 1000
        self._end_load(name, None)
        self._act(self._residency.loaded(name, self._measure(name), self._usages()))

    def _end_load(self, name: str, error: NereidError | None) -> None:
        known = self._models.get(name)
        if known is not None:
            known.wanted = False
            known.error = None
            if error is not None:
                known.error = Unavailable(error.message.rstrip(), accepted=True)
                known.failed_s = time.monotonic()
        load = self._loads.pop(name, None)
        if load is not None and not load.done():
            load.set_result(None if known is None else known.error)
        self._loader.notify_change()

    def _begin_unload(self, name: str) -> None:
        _log.info("model '%s' makes way for others", name)
        self.counts.unloads += 1
        self._desired.add(name, Why.RELEASED, on_end=partial(self._on_unloaded, name))

    def _on_unloaded(self, name: str, _: NereidError | None) -> None:
        self._moved_s = time.monotonic()
        self._act(self._residency.unloaded(name, self._usages()))

    def _act(self, actions: Actions) -> None:
        for name in actions.unloads:
            self._begin_unload(name)
        for load in actions.loads:
            if load.executor and self._catalogue.is_served(load.model):
                self._move(load.model, load.executor)
            else:
                self._begin_load(load)
        for name, reason in actions.refusals:
            _log.error("model '%s' cannot be loaded: %s", name, reason)
            self._end_load(name, Unavailable(f"model '{name}' cannot be loaded: {reason}"))
        self._record_waits()
        if self._residency.waiting and self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(_RETRY_S, self._on_retry)

    def _record_waits(self) -> None:
        now_ns = time.monotonic_ns()
        waiting = dict.fromkeys(self._residency.waiting)
        for name in [waited for waited in self._waiting_since_ns if waited not in waiting]:
            since_ns = self._waiting_since_ns.pop(name)
            requests = self._use.held_requests(name)
            self._timeline.record_wait(Wait(name, "", MEMORY, since_ns, now_ns, requests))
        for name in waiting:
            self._waiting_since_ns.setdefault(name, now_ns)

    def _on_retry(self) -> None:
        self._retry = None
        held = self._use.held()
        for name in self._residency.waiting:
            # A model whose executor was lost may still be in service, with requests but no load.
            if name in self._loads and name not in held and name not in self._awaited:
                _log.info("model '%s' is not loaded: nobody waits for it any more", name)
                actions = self._residency.forget(name, self._usages())
                self._end_load(name, None)
                self._act(actions)
        stalled = time.monotonic() - self._moved_s > _STALLED_S
        self._act(self._residency.retry(self._usages(), stalled=stalled))

    def _move(self, name: str, executor: str) -> None:
        """Load a model on another executor: the one that had it was lost, and requests wait."""
        for served in self._catalogue.running(name):
            self._loader.load_on(served, frozenset([executor]))
        if name not in self._loads:
            self._act(self._residency.loaded(name, {}, self._usages()))

    def _sync_executors(self) -> None:
        names = {session.name for session in self._loader.sessions}
        joined, left = names - self._executors, self._executors - names
        self._executors = names
        if joined:
            # A load that failed before may succeed on the new executor.
            for known in self._models.values():
                known.error = None
        for name in sorted(joined):
            self._act(self._residency.add_executor(name, self._usages()))
        for name in self._loads if joined else ():
            # Tell the policy what the model needs on the new executor.
            if self._residency.status(name) is Status.WAITING:
                self._spawn(self._place_model(name))
        for name in sorted(left):
            lost = [
                model for model in self._models if self._residency.executors_of(model) == (name,)
            ]
            self._act(self._residency.remove_executor(name, self._usages()))
            for model in lost:
                # If no request waits for the model, the next request loads it.
                if model in self._loads or self._use.in_use(model):
                    self._spawn(self._place_model(model))
                else:
                    self._desired.add(model, Why.RELEASED)

    def _usages(self) -> dict[str, Usage]:
        """Return the use of all models in service, including models that are loaded for good."""
        if not self._budgets:
            return {}
        for name in self._use.others():
            self._residency.pin(name, self._measure(name))
        needed = self._use.held() | self._loads.keys()
        # An ensemble that waits for its turn does not need memory yet.
        waiting = {name for name in needed if self._is_pending_ensemble(name)}
        return self._use.usages((needed - waiting) | self._ensembles.turn)

    def _is_pending_ensemble(self, name: str) -> bool:
        known = self._models.get(name)
        return known is not None and is_ensemble(known.found.draft) and not self._use.is_ready(name)

    def _measure(self, name: str) -> dict[str, dict[str, int]]:
        memory = self._use.memory(name)
        by_device: dict[str, list[int]] = {}
        for devices in memory.values():
            for device, sizes in devices.items():
                by_device.setdefault(device, []).extend(sizes)
        if self._sizes.measured(name, by_device):
            self._spawn(self._record_sizes(self._sizes.saved()))
        return {
            executor: {device: sum(sizes) for device, sizes in devices.items()}
            for executor, devices in memory.items()
        }

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("unexpected error in a load on demand", exc_info=task.exception())


class NoOnDemand(OnDemand):
    """The models on demand of a scheduler that loads no model on demand."""

    def __init__(self) -> None:
        pass

    def restore_sizes(self, saved: Mapping[str, Any]) -> None:
        """Restore nothing."""

    async def close(self) -> None:
        """Cancel nothing."""

    def defer(self, found: FoundModel) -> bool:  # noqa: ARG002 - of OnDemand
        """Return False."""
        return False

    def hosts_of(self, name: str) -> frozenset[str] | None:  # noqa: ARG002 - of OnDemand
        """Return `None`: all executors."""
        return None

    def forget(self, name: str) -> None:
        """Forget nothing."""

    def on_reloaded(self, name: str) -> None:
        """Measure nothing."""

    def retain(self, names: Container[str]) -> None:
        """Forget nothing."""

    def request(self, name: str, number: int) -> bool:  # noqa: ARG002 - of OnDemand
        """Return False."""
        return False

    async def ensure(self, name: str, number: int) -> None:
        """Wait for nothing."""

    def on_executors(self) -> None:
        """Place nothing."""


NO_ON_DEMAND: Final = NoOnDemand()


def _is_lazy(draft: model_config_pb2.ModelConfig) -> bool:
    if PARAMETER not in draft.parameters:
        return True
    text = draft.parameters[PARAMETER].string_value
    try:
        return boolean(text)
    except ValueError as error:
        _log.error("model '%s': parameter '%s': %s; ignored", draft.name, PARAMETER, error)
        return True


def _file_bytes(versions: Iterable[str]) -> int:
    total = 0
    for version in versions:
        for directory, _, names in os.walk(version):
            for name in names:
                try:
                    total += (Path(directory) / name).stat().st_size
                except OSError:
                    continue
    return total
