"""Which models are served: all there are, those that were asked for, or as the files change.

The one owner of that question. Reads repositories beside the event loop, has pure code decide what
is to be done, has the loader do it, and waits for what becomes of it. What concerns one model
happens in turn; a load that fails leaves in service what was. The texts are Triton's.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from nereid.core.errors import Internal, InvalidArgument, NereidError, Unavailable
from nereid.services.scheduler.models.catalogue import ServedModel, ServedVersion
from nereid.services.scheduler.models.dependencies import (
    circle_text,
    in_order,
    is_ensemble,
    models_of,
    without_circles,
)
from nereid.services.scheduler.models.lifecycle import VersionState, reason_of
from nereid.services.scheduler.models.reload_decision import compare
from nereid.services.scheduler.models.replacement import Replacement
from nereid.services.scheduler.repository.repositories import FoundModel, NoVersion, Repositories

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from nereid.pb import kserve_pb2
    from nereid.services.scheduler.models.catalogue import Catalogue
    from nereid.services.scheduler.models.loader import Loader
    from nereid.services.scheduler.repository.overrides import Override

_log = logging.getLogger(__name__)

EXPLICIT: Final = "explicit"
POLL: Final = "poll"
ALL_MODELS: Final = "*"
_NOT_ALLOWED: Final = "explicit model load / unload is not allowed if polling is enabled"


@dataclass(frozen=True)
class ControlRules:
    """What the settings say. load: the models to begin with, in explicit mode."""

    mode: str = "none"
    load: tuple[str, ...] = ()
    poll_interval_s: float = 15.0
    retries: int = 0
    # How long a load waits while no executor tries.
    patience_s: float = 30.0


class RepositoryControl:
    """Loads and unloads models; used in one event loop."""

    def __init__(
        self,
        repositories: Repositories,
        catalogue: Catalogue,
        loader: Loader,
        rules: ControlRules,
    ) -> None:
        self._repositories = repositories
        self._catalogue = catalogue
        self._loader = loader
        self._rules = rules
        # Of a model that nobody loads or unloads there is none: names come from clients.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # What each model in service was like when it was looked at last.
        self._origins: dict[str, bytes] = {}
        # Models whose last load failed: loading them again is no repetition.
        self._failed: set[str] = set()
        # Those that somebody asked for by name: they outlive the ensembles that need them.
        self._wanted: set[str] = set(rules.load)
        # Of ensembles whose load is under way, the models that are loaded before.
        self._waits: dict[str, set[str]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._first: list[asyncio.Task[bool]] = []

    # ---- the start and the end

    async def start(self) -> None:
        """Begin to load what there is to begin with; what follows happens by itself."""
        initial = await asyncio.to_thread(self._initial)
        if not initial and self._rules.mode != EXPLICIT:
            where = ", ".join(self._repositories.paths)
            _log.warning("there are no models in %s: each is a folder there", where)
        for found in without_circles(in_order(initial)):
            self._first.append(self._spawn(self._begin(found)))
        if self._rules.mode == POLL and self._rules.poll_interval_s > 0:
            self._spawn(self._poll_forever())
        # Their states are known from the first question on.
        await asyncio.sleep(0)

    async def first_loads(self) -> bool:
        """Wait until all that there was to begin with is loaded; whether all of it could be."""
        return all(await asyncio.gather(*self._first))

    async def close(self) -> None:
        """Leave everything as it is and do nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _initial(self) -> list[FoundModel]:
        wanted = self._rules.load
        if self._rules.mode != EXPLICIT or wanted == (ALL_MODELS,):
            return self._repositories.scan()
        found: dict[str, FoundModel] = {}
        pending = [*reversed(wanted)]
        while pending:
            name = pending.pop()
            if name not in found:
                found[name] = self._find(name, None)
                pending += models_of(found[name].draft)
        # A step's model that is nowhere is its ensemble's fault alone.
        return [each for each in found.values() if each.name in wanted or each.path.name]

    # ---- what clients ask for

    async def load(self, name: str, override: Override | None = None) -> None:
        """Serve a model as it is in its repository now, or as the override says.

        Raises:
            NereidError: it cannot be; what was served before still is.
        """
        self._require_explicit()
        if "/" in name or name in (".", ".."):
            raise InvalidArgument(
                f"invalid model name '{name}', model name must not contain path traversal"
                " characters"
            )
        # It goes on when the client goes.
        await asyncio.shield(self._spawn(self._load(name, override)))

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Have a model finish what it accepted, and end; returns when it takes nothing new.

        dependents: and, of an ensemble, the models that it brought along and no other one needs.
        """
        self._require_explicit()
        model = self._catalogue.model(name) if dependents else None
        versions = [] if model is None else list(model.versions.values())
        steps = {step for each in versions if not each.life.gone for step in models_of(each.draft)}
        await asyncio.shield(self._spawn(self._unload(name)))
        for step in sorted(steps - self._wanted):
            if not self._is_step(step):
                await asyncio.shield(self._spawn(self._unload(step)))

    async def index(self, *, ready_only: bool) -> kserve_pb2.RepositoryIndexResponse:
        """The models of the repositories and those in service."""
        try:
            names = await asyncio.to_thread(self._repositories.names)
        except OSError as error:
            raise Internal(f"a model repository cannot be read: {error.strerror}") from error
        return self._catalogue.index(names, ready_only=ready_only)

    def _require_explicit(self) -> None:
        if self._rules.mode != EXPLICIT:
            raise Unavailable(_NOT_ALLOWED)

    # ---- one model at a time

    async def _begin(self, found: FoundModel) -> bool:
        """A model's first load, at the start."""
        async with self._lock(found.name):
            if found.error is not None:
                self._refuse(found, found.error)
                return False
            return await self._try(found, None)

    async def _load(self, name: str, override: Override | None) -> None:
        async with self._lock(name):
            found = await asyncio.to_thread(self._find, name, override)
            if isinstance(found.error, NoVersion):
                raise InvalidArgument(f"load failed for model '{name}': {found.error.message}\n")
            if found.error is not None:
                _log.error("model '%s' cannot be loaded: %s", name, found.error.message)
                raise Internal(f"failed to load '{name}', failed to poll from model repository")
            self._wanted.add(name)
            if override is None and self._is_current(found):
                return
            if is_ensemble(found.draft):
                await self._load_steps(found)
            await self._apply(found, self._rules.patience_s)

    async def _load_steps(self, found: FoundModel) -> None:
        """Have the models in service that an ensemble consists of, as far as they are not."""
        models = {found.name: found}
        pending = [found]
        while pending:
            for name in models_of(pending.pop().draft):
                if name not in models and not self._is_served(name):
                    models[name] = await asyncio.to_thread(self._find, name, None)
                    pending.append(models[name])
        _require_no_circle(found.name, partial(self._models_in, models))
        steps = [each for each in in_order(models.values()) if each is not found]
        plain = [each for each in steps if not is_ensemble(each.draft)]
        waits = self._waits.setdefault(found.name, set())
        waits.update(each.name for each in steps)
        try:
            # Loads of configurations that clients sent could wait for each other.
            _require_no_circle(found.name, lambda name: self._waits.get(name, ()))
            await asyncio.gather(*map(self._load_step, plain))
            for each in steps:
                if is_ensemble(each.draft):
                    await self._load_step(each)
        finally:
            del self._waits[found.name]

    async def _load_step(self, found: FoundModel) -> None:
        async with self._lock(found.name):
            if found.path.name and not self._is_served(found.name):
                await self._try(found, self._rules.patience_s)

    def _models_in(self, found: Mapping[str, FoundModel], name: str) -> list[str]:
        """The models that one consists of: as it is to be loaded, else as it is served."""
        if name in found:
            return models_of(found[name].draft)
        model = self._catalogue.model(name)
        versions = [] if model is None else model.versions.values()
        return [step for each in versions for step in models_of(each.draft)]

    def _is_step(self, name: str) -> bool:
        """Whether an ensemble that nobody has unloaded consists of this model."""
        return any(
            name in models_of(each.draft)
            for each in self._catalogue.versions()
            if not each.life.gone and not each.life.refused
        )

    def _is_served(self, name: str) -> bool:
        """Whether a model is ready, or being loaded."""
        model = self._catalogue.model(name)
        states = set() if model is None else {each.life.state for each in model.versions.values()}
        return not states.isdisjoint((VersionState.READY, VersionState.LOADING))

    async def _unload(self, name: str) -> None:
        async with self._lock(name):
            self._origins.pop(name, None)
            self._failed.discard(name)
            self._wanted.discard(name)
            model = self._catalogue.model(name)
            if model is not None:
                for served in model.versions.values():
                    if not served.life.gone:
                        self._spawn(self._loader.retire(served))

    async def _reload(self, found: FoundModel) -> None:
        """A model whose files have changed."""
        async with self._lock(found.name):
            await self._try(found, self._rules.patience_s)

    async def _try(self, found: FoundModel, patience_s: float | None) -> bool:
        try:
            await self._apply(found, patience_s)
        except NereidError as error:
            _log.error("model '%s': %s", found.name, error.message.rstrip())
            return False
        return True

    async def _apply(self, found: FoundModel, patience_s: float | None) -> None:
        """Serve a model as it was found; raises NereidError when that cannot be done entirely."""
        name = found.name
        self._origins[name] = found.origin
        self._failed.add(name)
        if found.error is not None:
            raise found.error
        model = self._catalogue.model(name)
        if model is None:
            model = ServedModel(name)
            self._catalogue.put(model)
        model.refusal = ""
        replacement = Replacement(self._loader, model, found)
        change = compare(model.versions, found)
        errors = await replacement.run(change, self._rules.retries, patience_s)
        for served in replacement.surplus:
            self._spawn(self._loader.retire(served))
        if errors:
            raise InvalidArgument(f"load failed for model '{name}': {''.join(errors)}\n")
        self._failed.discard(name)

    def _find(self, name: str, override: Override | None) -> FoundModel:
        found = self._repositories.find(name, override)
        return found or FoundModel(name, error=Internal("there is no such model"))

    def _is_current(self, found: FoundModel) -> bool:
        """Whether the model is in service and has not changed since it was looked at."""
        model = self._catalogue.model(found.name)
        if model is None or found.name in self._failed:
            return False
        states = {each.life.state for each in model.versions.values() if not each.life.gone}
        return states == {VersionState.READY} and self._origins.get(found.name) == found.origin

    def _refuse(self, found: FoundModel, error: NereidError) -> None:
        """Show a model that cannot even be tried, with why that is so."""
        unversioned = found.path.name and not found.versions
        hint = f" ({found.path} has no folder with a version's number)" if unversioned else ""
        _log.error("model '%s' cannot be loaded: %s%s", found.name, error.message, hint)
        if not found.path.name:
            return
        model = ServedModel(found.name, refusal=reason_of(error.code, error.message))
        for number in found.versions:
            served = ServedVersion(found.name, number, found.version_path(number), found.draft)
            served.life.refuse(model.refusal)
            model.versions[number] = served
        self._catalogue.put(model)
        self._origins[found.name] = found.origin
        self._failed.add(found.name)

    # ---- as the files change

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._rules.poll_interval_s)
            try:
                found = await asyncio.to_thread(self._repositories.scan)
            except OSError as error:
                # Nothing is unloaded because a disk cannot be read.
                _log.error("a model repository cannot be read: %s", error)
                continue
            self._follow(found)

    def _follow(self, found: list[FoundModel]) -> None:
        """Bring into service what is new or other than before, and take out what is gone."""
        for each in without_circles(in_order(found)):
            if not self._is_busy(each.name) and self._origins.get(each.name) != each.origin:
                self._spawn(self._reload(each))
        present = {each.name for each in found}
        for model in self._catalogue.models():
            if model.name not in present and not self._is_busy(model.name) and model.in_service:
                self._spawn(self._unload(model.name))

    # ---- tasks

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _is_busy(self, name: str) -> bool:
        lock = self._locks.get(name)
        return lock is not None and lock.locked()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            if not isinstance(error, NereidError):
                _log.error("the control of models failed", exc_info=error)


def _require_no_circle(name: str, models_in: Callable[[str], Iterable[str]]) -> None:
    circle = circle_text(name, models_in)
    if circle:
        raise InvalidArgument(f"load failed for model '{name}': {circle}\n")
