"""Models as they are loaded here: one load or unload of a model after another.

Has pure code plan each load, has the loader carry it out, waits for the outcome, and remembers how
each model was loaded last. A load that fails leaves the old versions in service. Which models are
loaded, and from what, is not known here. The texts are Triton's.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from nereid.core.errors import InvalidArgument, NereidError
from nereid.services.scheduler.models.catalogue import ServedModel, ServedVersion
from nereid.services.scheduler.models.lifecycle import VersionState, reason_of
from nereid.services.scheduler.models.reload import ModelReload
from nereid.services.scheduler.models.reload_plan import plan_reload
from nereid.services.scheduler.repository.found_model import NotUnique, NoVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from nereid.services.scheduler.models.catalogue import Catalogue
    from nereid.services.scheduler.models.loader import Loader
    from nereid.services.scheduler.repository.found_model import FoundModel

_log = logging.getLogger(__name__)


class ModelLoads:
    """Used in one event loop; for each model only by who has its lock."""

    def __init__(
        self,
        catalogue: Catalogue,
        loader: Loader,
        retries: int,
        on_loaded: Callable[[ServedModel], bool],
    ) -> None:
        """retries: of an instance's load. on_loaded: called after a load; False: another scheduler
        has the model by now, and whether all of it could be loaded is of no interest.
        """
        self._catalogue = catalogue
        self._loader = loader
        self._retries = retries
        self._on_loaded = on_loaded
        # By model. Weak, since names come from clients: a lock exists while a task holds it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # FoundModel.digest of each model when it was last loaded or refused.
        self._digests: dict[str, bytes] = {}
        # Models whose last load failed: loading them again is worthwhile without a change.
        self._failed: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        # By model: what finds out how a model that is awaited was loaded.
        self._searches: dict[str, asyncio.Task[Any]] = {}

    async def close(self) -> None:
        """Cancel pending work; models stay as they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it in a task, which close() cancels; a bug in it is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            if not isinstance(error, NereidError):
                _log.error("a load or unload failed by a bug", exc_info=error)

    def lock(self, name: str) -> asyncio.Lock:
        """Of one model; held while it is loaded or unloaded."""
        return self._locks.setdefault(name, asyncio.Lock())

    def is_busy(self, name: str) -> bool:
        """Whether a model is being loaded or unloaded."""
        lock = self._locks.get(name)
        return lock is not None and lock.locked()

    # ---- models that are awaited

    def await_model(self, name: str, plain_name: str, search: asyncio.Task[Any] | None) -> None:
        """Until its load begins, a model's requests wait. search: what finds it."""
        self._catalogue.awaited[name] = plain_name
        if search is not None:
            self._searches[name] = search

    def end_awaiting(self, names: Iterable[str]) -> None:
        """Their loads begin, or they are not to be loaded any more."""
        for name in names:
            self._searches.pop(name, None)
            if self._catalogue.awaited.pop(name, None) is not None:
                self._loader.notify_change()

    async def found(self, name: str) -> None:
        """Wait until a model is found, if it is awaited."""
        while name in self._searches:
            await asyncio.wait([self._searches[name]])

    # ---- what is loaded

    def is_known(self, name: str) -> bool:
        """Whether a model is in service, is being loaded, or has failed to."""
        model = self._catalogue.model(name)
        return model is not None and not model.unloaded

    def is_served(self, name: str) -> bool:
        """Whether a model is ready, or being loaded."""
        model = self._catalogue.model(name)
        states = set() if model is None else {each.life.state for each in model.versions.values()}
        return not states.isdisjoint((VersionState.READY, VersionState.LOADING))

    def is_current(self, found: FoundModel) -> bool:
        """Whether the model is in service and has not changed since it was loaded."""
        model = self._catalogue.model(found.name)
        if model is None or found.name in self._failed:
            return False
        states = {each.life.state for each in model.versions.values() if not each.life.unload_begun}
        return states == {VersionState.READY} and self._digests.get(found.name) == found.digest

    def has_changed(self, found: FoundModel) -> bool:
        """Whether a model is not as it was when it was last loaded or refused."""
        return self._digests.get(found.name) != found.digest

    def forget(self, name: str) -> None:
        """A model is not to be loaded any more."""
        self._digests.pop(name, None)
        self._failed.discard(name)
        self._catalogue.refusals.pop(name, None)
        self._catalogue.unrestored.discard(name)

    # ---- one model at a time

    async def load_first(self, found: FoundModel, *, recorded: bool) -> bool:
        """A model's load at the start; whether it succeeds. Waits for executors without limit.
        recorded: it was in service before.
        """
        if found.error is not None:
            if recorded and not found.exists:
                # Else nobody would see that it is missing.
                self._catalogue.unrestored.add(found.name)
                reason = reason_of(found.error.code, found.error.message)
                self._catalogue.refusals[found.name] = reason
            self._show_refused(found, found.error)
            self.end_awaiting([found.name])
            return False
        return await self.try_load(found, None)

    async def try_load(self, found: FoundModel, no_executor_timeout_s: float | None) -> bool:
        """As load(); a failure is logged."""
        try:
            await self.load(found, no_executor_timeout_s)
        except NereidError as error:
            _log.error("model '%s': %s", found.name, error.message.rstrip())
            return False
        return True

    async def load(self, found: FoundModel, no_executor_timeout_s: float | None) -> None:
        """Serve a model as it was found. no_executor_timeout_s: how long to wait while no executor
        tries; None: for ever.

        Raises:
            NereidError: some part of that failed.
        """
        name = found.name
        self._digests[name] = found.digest
        self._failed.add(name)
        self.note_refusal(found)
        if found.error is not None:
            self.end_awaiting([name])
            raise found.error
        model = self._catalogue.model(name)
        if model is None:
            model = ServedModel(name, namespace=found.namespace)
            self._catalogue.set_model(model)
        model.reason = ""
        self.end_awaiting([name])
        reload = ModelReload(self._loader, model, found)
        plan = plan_reload(model.versions, found)
        errors = await reload.run(plan, self._retries, no_executor_timeout_s)
        for served in reload.to_unload:
            self.spawn(self._loader.unload(served))
        if not self._on_loaded(model):
            return
        if found.url and reload.may_succeed_later:
            # The next poll tries again.
            self._digests.pop(name, None)
        if errors:
            raise InvalidArgument(
                f"load failed for model '{found.plain_name}': {''.join(errors)}\n"
            )
        self._failed.discard(name)

    def note_refusal(self, found: FoundModel) -> None:
        """Have the index give the reason why a model without versions cannot be loaded, if so."""
        name, error = found.name, found.error
        self._catalogue.refusals.pop(name, None)
        if error is None:
            self._catalogue.unrestored.discard(name)
        # Names that are in no repository come from clients.
        if error is not None and found.digest:
            self._catalogue.refusals[name] = reason_of(error.code, error.message)
            if isinstance(error, NoVersion) and self._catalogue.model(name) is None:
                # As on Triton, it is known from now on.
                self._catalogue.set_model(ServedModel(name, namespace=found.namespace))

    def _show_refused(self, found: FoundModel, error: NereidError) -> None:
        """Have the index show a model that cannot be loaded, with the reason."""
        unversioned = found.exists and not found.versions
        where = found.url or found.path
        hint = f" ({where} has no folder with a version's number)" if unversioned else ""
        _log.error("model '%s' cannot be loaded: %s%s", found.name, error.message, hint)
        if not found.exists or isinstance(error, NotUnique):
            return
        reason = reason_of(error.code, error.message)
        model = ServedModel(found.name, reason=reason, namespace=found.namespace)
        for number in found.versions:
            served = ServedVersion(
                found.name, number, found.version_path(number), found.draft, found.namespace
            )
            served.life.refuse(model.reason)
            model.versions[number] = served
        self._catalogue.set_model(model)
        self._digests[found.name] = found.digest
        self._failed.add(found.name)
