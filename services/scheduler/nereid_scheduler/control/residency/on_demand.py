"""Loads models at their first requests, and unloads models that make way for others.

A request whose model is in service does not reach this module.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nereid.config.flags import boolean
from nereid.core.errors import NereidError, Unavailable
from nereid.timeline.records import MEMORY, Wait
from nereid_scheduler.control.outcomes import awaiting
from nereid_scheduler.control.residency.ensemble_loads import EnsembleLoads
from nereid_scheduler.control.residency.model_needs import model_needs, read_file_bytes
from nereid_scheduler.control.residency.policies.model_memory import Status
from nereid_scheduler.control.residency.use import ModelUse
from nereid_scheduler.control.tasks import Tasks
from nereid_scheduler.core.measurements.timeline import NO_TIMELINE
from nereid_scheduler.core.memory.sizes import ModelSizes
from nereid_scheduler.core.models.dependencies import is_ensemble
from nereid_scheduler.core.models.desired_models import Reason
from nereid_scheduler.placement.models.catalogue import OnDemand

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Iterable, Mapping

    from nereid.pb import model_config_pb2
    from nereid_scheduler.control.residency.policies.policy import Actions, Residency, Usage
    from nereid_scheduler.control.residency.policies.popularity import Popularity
    from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
    from nereid_scheduler.core.models.desired_models import DesiredModels
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.core.models.on_demand_models import OnDemandModel
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


class OnDemandLoads:
    """The loads on demand of one scheduler, and the unloads that make way for them."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        desired: DesiredModels,
        catalogue: Catalogue,
        loader: Loader,
        residency: Residency,
        popularity: Popularity,
        *,
        enabled: bool = False,
        timeout_s: float = 0.0,
        held_models: Callable[[], Iterable[str]] = tuple,
        record_sizes: Callable[[Mapping[str, Any]], Coroutine[Any, Any, None]] | None = None,
        timeline: SchedulerTimeline = NO_TIMELINE,
    ) -> None:
        """Create the loads of a scheduler without models on demand, or with them if `enabled`.

        held_models: returns the model of each request that waits for a load.
        """
        self.enabled = enabled
        self._desired = desired
        self._models = desired.on_demand
        self._pending = desired.pending_loads
        self._catalogue = catalogue
        self._loader = loader
        self._timeout_s = timeout_s
        self._residency = residency
        self._budgets = residency.memory.budgets
        self.counts = OnDemandCounts()
        self._use = ModelUse(catalogue, loader, self._models, held_models, popularity)
        self._tasks = Tasks()
        self._sizes = ModelSizes()
        self._record_sizes = record_sizes
        self._executors: set[str] = set()
        self._ensembles = EnsembleLoads(desired, residency, self._use, self._begin, timeout_s)
        self._retry: asyncio.TimerHandle | None = None
        # Monotonic time of the last load or unload, or of the start of the first wait for memory.
        self._last_progress_s = 0.0
        self._timeline = timeline

    def restore_sizes(self, saved: Mapping[str, Any]) -> None:
        """Use the sizes that an earlier scheduler has measured."""
        self._sizes = ModelSizes(saved)

    async def close(self) -> None:
        """Cancel pending work. The models stay as they are."""
        if self._retry is not None:
            self._retry.cancel()
        await self._tasks.close()

    def defer(self, found: FoundModel) -> bool:
        """Leave a model to its first request; return False if the model must be loaded now."""
        name = found.name
        if not self.enabled or found.error is not None or not _is_lazy(found.draft):
            return False
        if name not in self._models and self._catalogue.is_known(name):
            return False
        self._models.defer(found)
        # A model that is in memory is reloaded now, like any other model.
        return not self._use.is_ready(name)

    def hosts_of(self, name: str) -> frozenset[str] | None:
        """Return the executors on which a model is reloaded; `None` means all executors."""
        if not self._budgets or name not in self._models:
            return None
        return frozenset(self._residency.executors_of(name)) or None

    def forget(self, name: str) -> None:
        """Stop handling a model that was deleted, or that a client loaded or unloaded for good."""
        self._models.pop(name, None)
        actions = self._residency.forget(name, self._usages())
        if name in self._pending:
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

    def request(self, model: OnDemandModel) -> None:
        """Begin a load for a request unless one is pending.

        Raises NereidError if a load has failed a short time ago.
        """
        if model.name in self._pending:
            return
        if model.error is not None:
            if time.monotonic() - model.failed_s < _FAILED_S:
                raise model.error.with_traceback(None)
            model.error = None
        self._begin(model)

    async def ensure(self, name: str, version: str) -> None:
        """Load a model on demand and wait for it; raise NereidError if that fails."""
        found = self._catalogue.resolve(name, version)
        if not isinstance(found, OnDemand):
            return
        self.request(found.model)
        with awaiting(self._pending, [found.model.name]) as outcomes:
            if outcomes:
                await asyncio.wait(outcomes, timeout=self._timeout_s)
        if found.model.error is not None:
            raise found.model.error.with_traceback(None)

    def on_executors(self) -> None:
        """Update the set of executors, since some have joined or left."""
        names = {session.name for session in self._loader.sessions}
        joined, left = names - self._executors, self._executors - names
        self._executors = names
        if joined:
            # A load that failed before may succeed on the new executor.
            for known in self._models.values():
                known.error = None
        for name in sorted(joined):
            self._act(self._residency.add_executor(name, self._usages()))
        for name in self._residency.waiting if joined else ():
            # Tell the policy what the model needs on the new executor.
            self._tasks.spawn(self._place_model(name))
        for name in sorted(left):
            lost = [
                model for model in self._models if self._residency.executors_of(model) == (name,)
            ]
            self._act(self._residency.remove_executor(name, self._usages()))
            for model in lost:
                # If no request waits for the model, the next request loads it.
                if model in self._pending or self._use.in_use(model):
                    self._tasks.spawn(self._place_model(model))
                else:
                    self._desired.add(model, Reason.RELEASED)

    def _begin(self, model: OnDemandModel) -> None:
        name = model.name
        if name in self._pending or self._use.is_ready(name):
            return
        self.counts.loads += 1
        self._pending.begin(name)
        _log.info("model '%s' is loaded on demand", name)
        ensemble = is_ensemble(model.found.draft)
        self._tasks.spawn(self._load_ensemble(name) if ensemble else self._place_model(name))

    async def _load_ensemble(self, name: str) -> None:
        self._end_load(name, await self._ensembles.load(name))

    async def _place_model(self, name: str) -> None:
        file_bytes = 0
        if name in self._models and self._budgets and not self._sizes.knows(name):
            file_bytes = await asyncio.to_thread(read_file_bytes, self._models[name].found)
        if name not in self._models:
            # The model was forgotten meanwhile.
            return
        self.on_executors()
        needs: dict[str, dict[str, int]] = {}
        if self._budgets:
            found = self._models[name].found
            needs = model_needs(found, self._sizes, self._loader.sessions, file_bytes)
        if not self._residency.waiting:
            self._last_progress_s = time.monotonic()
        self._act(self._residency.request(name, needs, self._usages()))

    def _on_loaded(self, name: str, error: NereidError | None) -> None:
        self._last_progress_s = time.monotonic()
        if self._residency.status(name) is not Status.LOADING:
            # The model was forgotten, or its executor was lost and another one will load it.
            return
        if error is not None and not self._use.is_ready(name):
            self._end_load(name, error)
            self._act(self._residency.load_failed(name, self._usages()))
            # Otherwise an executor that joins would load the model without regard to memory.
            self._desired.add(name, Reason.RELEASED)
            return
        if name in self._models:
            self._models[name].since_ns = time.monotonic_ns()
        self._end_load(name, None)
        self._act(self._residency.loaded(name, self._measure(name), self._usages()))

    def _end_load(self, name: str, error: NereidError | None) -> None:
        known = self._models.get(name)
        if known is None:
            error = None
        else:
            if error is not None:
                error = Unavailable(error.message.rstrip(), accepted=True)
                known.failed_s = time.monotonic()
            known.error = error
        if name in self._pending:
            self._record_wait(name, is_over=True)
        self._pending.end(name, error)
        self._loader.notify_change()

    def _on_unloaded(self, name: str, _: NereidError | None) -> None:
        self._last_progress_s = time.monotonic()
        self._act(self._residency.unloaded(name, self._usages()))

    def _act(self, actions: Actions) -> None:
        for name in actions.unloads:
            _log.info("model '%s' makes way for others", name)
            self.counts.unloads += 1
            self._desired.add(name, Reason.RELEASED, on_end=partial(self._on_unloaded, name))
        for name, executor in actions.loads:
            hosts = frozenset([executor]) if executor else None
            if hosts is None or not self._catalogue.is_served(name):
                on_loaded = partial(self._on_loaded, name)
                self._desired.add(name, Reason.ON_DEMAND, hosts=hosts, on_end=on_loaded)
                continue
            # The executor that had the model was lost, and requests wait.
            for served in self._catalogue.running(name):
                self._loader.load_on(served, hosts)
            if self._use.is_ready(name):
                self._on_loaded(name, None)
        for name, reason in actions.refusals:
            _log.error("model '%s' cannot be loaded: %s", name, reason)
            self._end_load(name, Unavailable(f"model '{name}' cannot be loaded: {reason}"))
        waiting = set(self._residency.waiting)
        for name in self._pending:
            self._record_wait(name, is_over=name not in waiting)
        if waiting and self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(_RETRY_S, self._on_retry)

    def _record_wait(self, name: str, *, is_over: bool) -> None:
        """Note the time since when a load waits for memory; record the wait if it is over."""
        load, now_ns = self._pending[name], time.monotonic_ns()
        if not is_over:
            load.waiting_since_ns = load.waiting_since_ns or now_ns
        elif load.waiting_since_ns:
            requests = self._use.held()[name]
            wait = Wait(name, "", MEMORY, load.waiting_since_ns, now_ns, requests)
            self._timeline.record_wait(wait)
            load.waiting_since_ns = 0

    def _on_retry(self) -> None:
        self._retry = None
        held = self._use.held()
        for name in self._residency.waiting:
            if name in held or self._pending[name].waiters or self._use.in_use(name):
                continue
            _log.info("model '%s' is not loaded: nobody waits for it any more", name)
            actions = self._residency.forget(name, self._usages())
            self._end_load(name, None)
            if self._use.is_ready(name):
                # Its executor was lost.
                self._desired.add(name, Reason.RELEASED)
            self._act(actions)
        stalled = time.monotonic() - self._last_progress_s > _STALLED_S
        self._act(self._residency.retry(self._usages(), stalled=stalled))

    def _usages(self) -> dict[str, Usage]:
        """Return the use of all models in service, including models that are loaded for good."""
        if not self._budgets:
            return {}
        for name in self._use.others():
            self._residency.pin(name, self._measure(name))
        needed = {*self._use.held(), *self._pending}
        return self._use.usages(name for name in needed if not self._awaits_turn(name))

    def _awaits_turn(self, name: str) -> bool:
        """Return whether a model is an ensemble that does not need memory yet."""
        known = self._models.get(name)
        return (
            known is not None
            and is_ensemble(known.found.draft)
            and not self._use.is_ready(name)
            and name != self._ensembles.loading_ensemble
        )

    def _measure(self, name: str) -> dict[str, dict[str, int]]:
        memory = self._use.memory(name)
        by_device: dict[str, list[int]] = {}
        for devices in memory.values():
            for device, sizes in devices.items():
                by_device.setdefault(device, []).extend(sizes)
        if self._sizes.measured(name, by_device) and self._record_sizes is not None:
            self._tasks.spawn(self._record_sizes(self._sizes.saved()))
        return {
            executor: {device: sum(sizes) for device, sizes in devices.items()}
            for executor, devices in memory.items()
        }


def _is_lazy(draft: model_config_pb2.ModelConfig) -> bool:
    if PARAMETER not in draft.parameters:
        return True
    text = draft.parameters[PARAMETER].string_value
    try:
        return boolean(text)
    except ValueError as error:
        _log.error("model '%s': parameter '%s': %s; ignored", draft.name, PARAMETER, error)
        return True
