"""Loads models when their first requests come, and unloads those that make way for others.

Has policy.py decide, and model control load and unload. A request that finds its model in service
never comes here: when a model was used last, and whether it is in use, is read from its statistics
and its queue as soon as a decision needs it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.config.flags import boolean
from nereid.core.errors import InvalidArgument, NereidError, Unavailable
from nereid.services.scheduler.executors.placement import gpu_ids
from nereid.services.scheduler.models.catalogue import OnDemandModel
from nereid.services.scheduler.models.dependencies import is_ensemble, step_models
from nereid.services.scheduler.models.lifecycle import VersionState
from nereid.services.scheduler.residency.policy import Residency, Status, Usage
from nereid.services.scheduler.residency.sizes import ModelSizes

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Iterable, Mapping

    from nereid.pb import model_config_pb2
    from nereid.services.scheduler.models.catalogue import Catalogue
    from nereid.services.scheduler.models.loader import Loader
    from nereid.services.scheduler.repository.found_model import FoundModel
    from nereid.services.scheduler.repository.model_control import ModelControl
    from nereid.services.scheduler.residency.policy import Actions, Load

_log = logging.getLogger(__name__)

# A model's, for one that is loaded as ever.
PARAMETER: Final = "lazy_loading"
# How often models that are in use are looked at again while others wait for their memory.
_RETRY_S: Final = 0.05
# How long a failed load is not tried again: each attempt may take seconds of an executor's time.
_FAILED_S: Final = 5.0


@dataclass(slots=True)
class OnDemandCounts:
    """Loads that requests began, and unloads that made way."""

    loads: int = 0
    unloads: int = 0


class OnDemand:
    """The models of one scheduler that are loaded on demand. Set control before any event."""

    control: ModelControl

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        catalogue: Catalogue,
        loader: Loader,
        *,
        budgets: Mapping[str, int],
        timeout_s: float,
        held_models: Callable[[], Iterable[str]],
        record_sizes: Callable[[Mapping[str, Any]], Coroutine[Any, Any, None]],
    ) -> None:
        """budgets: as of Residency. timeout_s: how long
        an ensemble waits for the models of its steps. held_models: of requests that wait for a
        load. record_sizes: keeps what saved sizes are restored from.
        """
        self._catalogue = catalogue
        self._loader = loader
        self._budgets = budgets
        self._timeout_s = timeout_s
        self._held_models = held_models
        self._record_sizes = record_sizes
        self._residency = Residency(budgets)
        self._sizes = ModelSizes()
        self.counts = OnDemandCounts()
        self._found: dict[str, FoundModel] = {}
        self._executors: set[str] = set()
        # Of models whose load is pending.
        self._loads: dict[str, asyncio.Future[None]] = {}
        self._failed_s: dict[str, float] = {}
        # Since when, on the clock of statistics, models are in memory.
        self._since_ms: dict[str, float] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def restore_sizes(self, saved: Mapping[str, Any]) -> None:
        """What an earlier scheduler has measured."""
        self._sizes = ModelSizes(saved)

    async def close(self) -> None:
        """Cancel what is pending; models stay as they are."""
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- model control

    def defer(self, found: FoundModel) -> bool:
        """Whether a model that was found is not to be loaded before its first request."""
        name = found.name
        if found.error is not None or not _is_lazy(found.draft):
            return False
        model = self._catalogue.model(name)
        if name not in self._catalogue.on_demand and model is not None and not model.unloaded:
            return False
        self._found[name] = found
        known = self._catalogue.on_demand.get(name)
        if known is None:
            known = OnDemandModel(name, found.plain_name, found.versions)
            self._catalogue.on_demand[name] = known
        elif known.error is not None:
            # Its files may be other ones.
            known.error = None
            self._failed_s.pop(name, None)
        known.versions = found.versions
        # One that is in memory is loaded anew like any other.
        return self._residency.status(name) is Status.OUT

    def forget(self, name: str) -> None:
        """A client has loaded or unloaded this model, and that is how it stays; or it is gone."""
        self._catalogue.on_demand.pop(name, None)
        self._found.pop(name, None)
        self._act(self._residency.forget(name, self._usages()))

    def retain(self, names: Container[str]) -> None:
        """Forget the models that are in no repository any more."""
        for name in [each for each in self._catalogue.on_demand if each not in names]:
            self.forget(name)

    # ---- requests

    def request(self, name: str, number: int) -> bool:
        """Whether a request for a model that is not in service waits for a load, which begins now
        if it has not. number: of the version; -1: the latest.

        Raises:
            NereidError: its load has failed just now.
        """
        known = self._catalogue.find_on_demand(name)
        if known is None or not known.has(number):
            return False
        if known.error is not None:
            if time.monotonic() - self._failed_s.get(known.name, 0.0) < _FAILED_S:
                raise known.error.with_traceback(None)
            known.error = None
        self._want(known)
        return True

    async def ensure(self, name: str, number: int) -> None:
        """Wait until a model is in service, if its first request would load it: clients ask for its
        metadata and configuration before they can make one.

        Raises:
            NereidError: it cannot be loaded.
        """
        model = self._catalogue.find_on_demand(name)
        if model is None or self._is_ready(model.name) or not self.request(name, number):
            return
        load = self._loads.get(model.name)
        if load is not None:
            await asyncio.wait([load], timeout=self._timeout_s)
        if model.error is not None:
            raise model.error.with_traceback(None)

    def on_executors(self) -> None:
        """Executors have joined or left."""
        self._sync_executors()

    # ---- loads and unloads

    def _want(self, known: OnDemandModel) -> asyncio.Future[None] | None:
        """Have a model loaded; None: it is in service."""
        name = known.name
        if name in self._loads:
            return self._loads[name]
        if self._is_ready(name):
            return None
        known.wanted = True
        self.counts.loads += 1
        load = self._loads[name] = asyncio.get_running_loop().create_future()
        _log.info("model '%s' is loaded on demand", name)
        if is_ensemble(self._found[name].draft):
            self._spawn(self._load_ensemble(known))
        else:
            self._spawn(self._place_model(name))
        return load

    async def _place_model(self, name: str) -> None:
        found, file_bytes = self._found[name], 0
        if self._budgets and not self._sizes.knows(name):
            file_bytes = await asyncio.to_thread(_file_bytes, found.path, found.versions)
        self._sync_executors()
        needs = self._needs(name, file_bytes)
        self._act(self._residency.request(name, needs, self._usages()))

    def _needs(self, name: str, file_bytes: int) -> dict[str, dict[str, int]]:
        """By executor; without budgets nothing is looked at. file_bytes: of all its versions."""
        if not self._budgets:
            return {}
        found = self._found[name]
        needs: dict[str, dict[str, int]] = {}
        versions = max(1, len(found.versions))
        for session in self._loader.sessions:
            if found.draft.backend not in session.hello.backends:
                continue
            try:
                gpus = gpu_ids(session.hello)
                each = self._sizes.needs(name, found.draft, gpus, file_bytes // versions)
            except InvalidArgument:
                continue
            needs[session.name] = {device: size * versions for device, size in each.items()}
        if not needs and self._loader.sessions:
            # The load itself says what is wrong.
            needs = {session.name: {} for session in self._loader.sessions}
        return needs

    async def _load_model(self, load: Load) -> None:
        name = load.model
        found = self._found[name]
        hosts = frozenset([load.executor]) if load.executor else None
        error: NereidError | None = None
        try:
            await self.control.load_on_demand(replace(found, hosts=hosts))
        except NereidError as refused:
            error = refused
        usages = self._usages()
        if error is not None and not self._is_ready(name):
            self._end_load(name, error)
            self._act(self._residency.load_failed(name, usages))
            return
        self._since_ms[name] = time.time() * 1000
        self._end_load(name, None)
        self._act(self._residency.loaded(name, self._measure(name), self._usages()))

    async def _load_ensemble(self, known: OnDemandModel) -> None:
        """The models of its steps first, wherever they fit."""
        error: NereidError | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._load_steps(known.name)
                if not self._is_ready(known.name):
                    await self.control.load_on_demand(self._found[known.name])
        except NereidError as refused:
            error = refused
        except TimeoutError:
            error = Unavailable(
                f"the models of ensemble '{known.name}' were not loaded in {self._timeout_s:g} s"
            )
        self._end_load(known.name, error)

    async def _load_steps(self, name: str) -> None:
        steps = [
            step
            for each in step_models(self._found[name].draft)
            if (step := self._catalogue.on_demand.get(each)) is not None
        ]
        loads = [load for step in steps if (load := self._want(step)) is not None]
        if loads:
            await asyncio.wait(loads)
        for step in steps:
            if step.error is not None:
                raise step.error.with_traceback(None)

    def _end_load(self, name: str, error: NereidError | None) -> None:
        known = self._catalogue.on_demand.get(name)
        if known is not None:
            known.wanted = False
            if error is not None:
                known.error = Unavailable(error.message.rstrip(), accepted=True)
                self._failed_s[name] = time.monotonic()
        load = self._loads.pop(name, None)
        if load is not None and not load.done():
            load.set_result(None)
        # Requests that wait for it look again.
        self._loader.notify_change()

    async def _unload_model(self, name: str) -> None:
        _log.info("model '%s' makes way for others", name)
        self.counts.unloads += 1
        await self.control.release(name)
        self._since_ms.pop(name, None)
        self._act(self._residency.unloaded(name, self._usages()))

    def _act(self, actions: Actions) -> None:
        for name in actions.unloads:
            self._spawn(self._unload_model(name))
        for load in actions.loads:
            if load.executor and self._is_served(load.model):
                self._move(load.model, load.executor)
            else:
                self._spawn(self._load_model(load))
        for name, reason in actions.refusals:
            _log.error("model '%s' cannot be loaded: %s", name, reason)
            self._end_load(name, Unavailable(f"model '{name}' cannot be loaded: {reason}"))
        if self._residency.waiting and self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(_RETRY_S, self._on_retry)

    def _on_retry(self) -> None:
        self._retry = None
        self._act(self._residency.retry(self._usages()))

    def _move(self, name: str, executor: str) -> None:
        """The executor that had a model is gone, and another one loads it: its requests wait."""
        model = self._catalogue.model(name)
        for served in () if model is None else model.versions.values():
            if not served.life.unload_begun:
                self._loader.load_on(served, frozenset([executor]))
        if name not in self._loads:
            self._act(self._residency.loaded(name, {}, self._usages()))

    def _sync_executors(self) -> None:
        names = {session.name for session in self._loader.sessions}
        joined, left = names - self._executors, self._executors - names
        self._executors = names
        for name in sorted(joined):
            self._act(self._residency.add_executor(name, self._usages()))
        for name in self._loads if joined else ():
            # What it needs there is not known yet.
            if self._residency.status(name) is Status.WAITING:
                self._spawn(self._place_model(name))
        for name in sorted(left):
            lost = [
                model
                for model in self._catalogue.on_demand
                if self._residency.executors_of(model) == (name,)
            ]
            self._act(self._residency.remove_executor(name, self._usages()))
            for each in lost:
                # Elsewhere, if requests wait for it; else when the next one comes.
                if each in self._loads or self._in_use(each):
                    self._spawn(self._place_model(each))
                else:
                    self._spawn(self.control.release(each))

    # ---- what is known

    def _is_ready(self, name: str) -> bool:
        return bool(self._ready_versions(name))

    def _is_served(self, name: str) -> bool:
        """Ready, or being loaded."""
        model = self._catalogue.model(name)
        states = {each.life.state for each in model.versions.values()} if model else set()
        return not states.isdisjoint((VersionState.READY, VersionState.LOADING))

    def _ready_versions(self, name: str) -> list[Any]:
        model = self._catalogue.model(name)
        versions = () if model is None else model.versions.values()
        return [
            each
            for each in versions
            if each.life.state is VersionState.READY and each.runtime is not None
        ]

    def _in_use(self, name: str) -> bool:
        return any(each.runtime.in_use for each in self._ready_versions(name))

    def _usages(self) -> dict[str, Usage]:
        """Of the models that are loaded on demand."""
        self._pin_others()
        names = self._catalogue.on_demand
        busy = {name for name in names if name in self._loads or self._in_use(name)}
        held = set(self._held_models())
        busy |= {each.name for each in names.values() if each.plain_name in held}
        # What an ensemble needs, or will, while it has requests: ensembles may have ensembles.
        pending = [each.name for each in self._catalogue.models() if self._in_use(each.name)]
        pending += busy
        while pending:
            name = pending.pop()
            for draft in self._drafts(name):
                steps = set(step_models(draft)) - busy
                busy |= steps
                pending += steps
        return {
            name: Usage(
                max(
                    [self._since_ms.get(name, 0.0)]
                    + [
                        each.runtime.statistics.last_inference_ms
                        for each in self._ready_versions(name)
                    ]
                ),
                name in busy,
            )
            for name in names
        }

    def _drafts(self, name: str) -> list[model_config_pb2.ModelConfig]:
        found = self._found.get(name)
        if found is not None:
            return [found.draft]
        model = self._catalogue.model(name)
        return [] if model is None else [each.draft for each in model.versions.values()]

    def _measure(self, name: str) -> dict[str, dict[str, int]]:
        """What a model takes on each executor; also noted for the next decision."""
        taken: dict[str, dict[str, int]] = {}
        by_device: dict[str, list[int]] = {}
        for served in self._ready_versions(name):
            for session in self._loader.sessions:
                hosted = session.hosted.get(served)
                for sizes in () if hosted is None else hosted.memory.values():
                    of_executor = taken.setdefault(session.name, {})
                    for device, size in sizes.items():
                        of_executor[device] = of_executor.get(device, 0) + size
                        by_device.setdefault(device, []).append(size)
        if self._sizes.measured(name, by_device):
            self._spawn(self._record_sizes(self._sizes.saved()))
        return taken

    def _pin_others(self) -> None:
        """What models take that are loaded for good."""
        if not self._budgets:
            return
        for model in self._catalogue.models():
            name = model.name
            if name in self._catalogue.on_demand or not self._is_ready(name):
                continue
            self._residency.pin(name, self._measure(name))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a load on demand failed by a bug", exc_info=task.exception())


def _is_lazy(draft: model_config_pb2.ModelConfig) -> bool:
    """Whether a model is loaded on demand, unless it says otherwise."""
    if PARAMETER not in draft.parameters:
        return True
    text = draft.parameters[PARAMETER].string_value
    try:
        return boolean(text)
    except ValueError as error:
        _log.error("model '%s': parameter '%s': %s; ignored", draft.name, PARAMETER, error)
        return True


def _file_bytes(model: Path, versions: Iterable[int]) -> int:
    """The size of the versions' files. Blocks."""
    total = 0
    for number in versions:
        for directory, _, names in os.walk(model / str(number)):
            for name in names:
                try:
                    total += (Path(directory) / name).stat().st_size
                except OSError:
                    continue
    return total
