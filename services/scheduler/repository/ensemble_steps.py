"""Loads the models of an ensemble's steps before it, as Triton does in explicit mode."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid.services.scheduler.models.dependencies import (
    cycle_error,
    in_load_order,
    is_ensemble,
    step_models,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from nereid.services.scheduler.models.catalogue import Catalogue
    from nereid.services.scheduler.repository.found_model import FoundModel
    from nereid.services.scheduler.repository.model_loads import ModelLoads


class EnsembleSteps:
    """Of all ensembles that are loaded; used in one event loop."""

    def __init__(  # noqa: PLR0913, PLR0917 (three report to model control)
        self,
        catalogue: Catalogue,
        loads: ModelLoads,
        find_model: Callable[[str], FoundModel],
        on_requested: Callable[[str], None],
        on_loaded: Callable[[FoundModel], Awaitable[None]],
        no_executor_timeout_s: float,
    ) -> None:
        """find_model: in the repositories; it blocks. on_requested: called before a step's model is
        loaded, or found to be. on_loaded: called when it has been loaded. no_executor_timeout_s:
        how long a load waits while no executor tries.
        """
        self._catalogue = catalogue
        self._loads = loads
        self._find_model = find_model
        self._on_requested = on_requested
        self._on_loaded = on_loaded
        self._no_executor_timeout_s = no_executor_timeout_s
        # Models of steps that are loaded first, by the ensemble whose load is pending.
        self._pending_steps: dict[str, set[str]] = {}

    async def load_steps(self, found: FoundModel) -> None:
        """Load the models of an ensemble's steps, unless they are in service.

        Raises:
            InvalidArgument: it would contain itself.
        """
        models = {found.name: found}
        pending = [found]
        while pending:
            for name in step_models(pending.pop().draft):
                if name not in models and not self._loads.is_served(name):
                    models[name] = await asyncio.to_thread(self._find_model, name)
                    pending.append(models[name])
        _require_no_cycle(found.name, partial(self._models_in, models))
        steps = [each for each in in_load_order(models.values()) if each is not found]
        plain = [each for each in steps if not is_ensemble(each.draft)]
        pending_steps = self._pending_steps.setdefault(found.name, set())
        pending_steps.update(each.name for each in steps)
        try:
            # Concurrent loads with overridden configurations could wait for each other.
            _require_no_cycle(found.name, lambda name: self._pending_steps.get(name, ()))
            await asyncio.gather(*map(self._load_step, plain))
            for each in steps:
                if is_ensemble(each.draft):
                    await self._load_step(each)
        finally:
            del self._pending_steps[found.name]

    def is_step(self, name: str) -> bool:
        """Whether an ensemble that is in service, or may come into it, has a step of this model."""
        return any(
            name in step_models(each.draft)
            for each in self._catalogue.versions()
            if not each.life.unload_begun and not each.life.refused
        )

    async def _load_step(self, found: FoundModel) -> None:
        async with self._loads.lock(found.name):
            self._on_requested(found.name)
            if found.exists and not self._loads.is_served(found.name):
                await self._loads.try_load(found, self._no_executor_timeout_s)
                if self._loads.is_served(found.name):
                    await self._on_loaded(found)

    def _models_in(self, found: Mapping[str, FoundModel], name: str) -> list[str]:
        """The models of an ensemble's steps: as it is to be loaded, else as it is served."""
        if name in found:
            return step_models(found[name].draft)
        model = self._catalogue.model(name)
        versions = [] if model is None else model.versions.values()
        return [step for each in versions for step in step_models(each.draft)]


def _require_no_cycle(name: str, models_in: Callable[[str], Iterable[str]]) -> None:
    cycle = cycle_error(name, models_in)
    if cycle:
        raise InvalidArgument(f"load failed for model '{name}': {cycle}\n")
