"""Loads ensembles on demand: first the models of their steps, on the executors where they fit."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError, Unavailable
from nereid_scheduler.control.outcomes import ask_for
from nereid_scheduler.core.models.dependencies import is_ensemble, step_models
from nereid_scheduler.core.models.desired_models import Why
from nereid_scheduler.core.models.load_order import in_load_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nereid_scheduler.control.outcomes import Outcome
    from nereid_scheduler.control.residency.policies.policy import Residency
    from nereid_scheduler.control.residency.use import ModelUse
    from nereid_scheduler.core.models.desired_models import DesiredModels, OnDemandModel

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.05


class AwaitedModels:
    """Names of the models that calls or ensembles are waiting for."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return self._counts[name] > 0

    @contextmanager
    def adding(self, names: Iterable[str]) -> Iterator[None]:
        """Add these names while the context is open."""
        added = list(names)
        self._counts.update(added)
        try:
            yield
        finally:
            self._counts.subtract(added)
            # Drop the names that have a count of zero.
            self._counts = +self._counts


class EnsembleLoads:
    """Loads ensembles together with the models of their steps.

    With budgets, only one ensemble at a time gets memory, since two could wait for each other.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (one by keyword)
        self,
        desired: DesiredModels,
        residency: Residency,
        use: ModelUse,
        want: Callable[[OnDemandModel], Outcome | None],
        awaited: AwaitedModels,
        timeout_s: float,
    ) -> None:
        self._desired = desired
        self._models = desired.on_demand
        self._residency = residency
        self._use = use
        self._want = want
        self._awaited = awaited
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        # With budgets: the name of the ensemble that is being loaded, if there is one.
        self.turn: set[str] = set()

    async def load(self, name: str) -> NereidError | None:
        """Load an ensemble and its parts, which may be ensembles; return an error if that fails."""
        turns = self._residency.budgets
        try:
            async with asyncio.timeout(self._timeout_s), self._lock if turns else nullcontext():
                self.turn = {name} if turns else set()
                return await self._load_with_steps(name)
        except TimeoutError:
            return Unavailable(
                f"the models of ensemble '{name}' were not loaded in {self._timeout_s:g} s"
            )
        except Exception:
            _log.exception("unexpected error: ensemble '%s' is not loaded", name)
            return Internal(INTERNAL_MESSAGE)
        finally:
            self.turn.discard(name)

    async def _load_with_steps(self, name: str) -> NereidError | None:
        if name not in self._models:
            return None  # The ensemble was forgotten meanwhile.
        models, ensembles = self._parts(name)
        loads = [load for model in models.values() if (load := self._want(model)) is not None]
        pending = set(loads)
        with self._awaited.adding(models):
            while pending:
                _, pending = await asyncio.wait(pending, timeout=_RETRY_S)
                for waiting in self._residency.waiting if self._residency.budgets else ():
                    if waiting in models and not self._residency.fits_beside(waiting, models):
                        return Unavailable(
                            f"the models of ensemble '{name}' do not fit the memory budget together"
                        )
        for load in loads:
            if load.result() is not None:
                return load.result()
        for part in ensembles:
            if part in self._models and not self._use.is_ready(part):
                error = await ask_for(self._desired, part, Why.ON_DEMAND)
                if error is not None and not self._use.is_ready(part):
                    return error
        return None

    def _parts(self, name: str) -> tuple[dict[str, OnDemandModel], list[str]]:
        """Return an ensemble's models by name, and the names of its ensembles, innermost first."""
        parts, pending = {name: self._models[name].found}, [name]
        while pending:
            for step in step_models(parts[pending.pop()].draft):
                if step in self._models and step not in parts:
                    parts[step] = self._models[step].found
                    pending.append(step)
        ordered = in_load_order(parts.values())
        models = {
            part.name: self._models[part.name] for part in ordered if not is_ensemble(part.draft)
        }
        return models, [part.name for part in ordered if is_ensemble(part.draft)]
