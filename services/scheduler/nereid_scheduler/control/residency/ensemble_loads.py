"""Loads ensembles on demand: first the models of their steps, on the executors where they fit."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError, Unavailable
from nereid_scheduler.control.outcomes import ask_for, awaiting
from nereid_scheduler.core.models.dependencies import is_ensemble, step_models
from nereid_scheduler.core.models.desired_models import Reason
from nereid_scheduler.core.models.load_order import in_load_order

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from nereid_scheduler.control.residency.policies.policy import Residency
    from nereid_scheduler.control.residency.use import ModelUse
    from nereid_scheduler.core.models.desired_models import DesiredModels
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.core.models.on_demand_models import OnDemandModel

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.05


class EnsembleLoads:
    """Loads ensembles together with the models of their steps.

    With budgets, only one ensemble at a time gets memory, since two could wait for each other.
    """

    def __init__(
        self,
        desired: DesiredModels,
        residency: Residency,
        use: ModelUse,
        begin_load: Callable[[OnDemandModel], None],
        timeout_s: float,
    ) -> None:
        self._desired = desired
        self._models = desired.on_demand
        self._residency = residency
        self._use = use
        self._begin_load = begin_load
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        # With budgets: the ensemble that is being loaded; empty if there is none.
        self.loading_ensemble = ""

    async def load(self, name: str) -> NereidError | None:
        """Load an ensemble and its parts, which may be ensembles; return an error if that fails."""
        turns = self._residency.memory.budgets
        try:
            async with asyncio.timeout(self._timeout_s), self._lock if turns else nullcontext():
                self.loading_ensemble = name if turns else ""
                try:
                    return await self._load_with_steps(name)
                finally:
                    self.loading_ensemble = ""
        except TimeoutError:
            return Unavailable(
                f"the models of ensemble '{name}' were not loaded in {self._timeout_s:g} s"
            )
        except Exception:
            _log.exception("unexpected error: ensemble '%s' is not loaded", name)
            return Internal(INTERNAL_MESSAGE)

    async def _load_with_steps(self, name: str) -> NereidError | None:
        if name not in self._models:
            return None  # The ensemble was forgotten meanwhile.
        parts = self._parts(name)
        models = [part.name for part in parts if not is_ensemble(part.draft)]
        for model in models:
            self._begin_load(self._models[model])
        with awaiting(self._desired.pending_loads, models) as outcomes:
            pending = set(outcomes)
            while pending:
                _, pending = await asyncio.wait(pending, timeout=_RETRY_S)
                if not self._fit_together(models):
                    text = f"the models of ensemble '{name}' do not fit the memory budget together"
                    return Unavailable(text)
        errors = [outcome.result() for outcome in outcomes]
        if any(errors):
            return next(filter(None, errors))
        for part in parts:
            is_known = part.name in self._models
            if is_known and is_ensemble(part.draft) and not self._use.is_ready(part.name):
                error = await ask_for(self._desired, part.name, Reason.ON_DEMAND)
                if error is not None and not self._use.is_ready(part.name):
                    return error
        return None

    def _fit_together(self, models: Container[str]) -> bool:
        if not self._residency.memory.budgets:
            return True
        waiting = [name for name in self._residency.waiting if name in models]
        return all(self._residency.fits_beside(name, models) for name in waiting)

    def _parts(self, name: str) -> list[FoundModel]:
        """Return an ensemble and the models of its steps, ensembles after their steps' models."""
        parts, pending = {name: self._models[name].found}, [name]
        while pending:
            for step in step_models(parts[pending.pop()].draft):
                if step in self._models and step not in parts:
                    parts[step] = self._models[step].found
                    pending.append(step)
        return in_load_order(parts.values())
