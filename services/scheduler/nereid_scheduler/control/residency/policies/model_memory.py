"""Counts the memory that models take, and that pending loads lack, against the budgets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from nereid_scheduler.core.models.on_demand_models import PendingLoad, PendingLoads

    # Maps a device to bytes. Devices are "cpu", or "gpu" and a number.
    Sizes = Mapping[str, int]


class Status(Enum):
    """State of a model."""

    OUT = "out"
    WAITING = "waiting"
    LOADING = "loading"
    RESIDENT = "resident"
    UNLOADING = "unloading"


@dataclass(slots=True)
class ModelInMemory:
    """Model that is LOADING, RESIDENT or UNLOADING."""

    status: Status
    # Bytes by executor and device. They are reserved while the model loads.
    taken: dict[str, Sizes] = field(default_factory=dict)
    pinned: bool = False


class ModelMemory:
    """The models in memory, by name, and the bytes that they take."""

    def __init__(self, budgets: Mapping[str, int], pending: PendingLoads) -> None:
        self.budgets = budgets
        self.models: dict[str, ModelInMemory] = {}
        self._pending = pending

    def used(self, executor: str, device: str) -> int:
        """Return the bytes on a device that models take or that are reserved for models."""
        return self._sum(executor, device, self.models.values())

    def free(self, executor: str) -> dict[str, int]:
        """Return the bytes of the budget that no model takes, for each device in use."""
        budgets = ((device, self._budget(device)) for device in self.devices(executor))
        return {
            device: max(0, budget - self.used(executor, device))
            for device, budget in budgets
            if budget is not None
        }

    def devices(self, executor: str) -> list[str]:
        """Return the devices of an executor on which models take memory."""
        return sorted(
            {device for model in self.models.values() for device in model.taken.get(executor, ())}
        )

    def excess(self, executor: str, device: str) -> int:
        """Return the bytes by which models exceed a budget, without those being unloaded."""
        budget = self._budget(device)
        if budget is None:
            return 0
        return self.used(executor, device) - self._freeing(executor, device) - budget

    def lacking(self, name: str, executor: str, *, freeing: bool) -> dict[str, int]:
        """Return the bytes that a waiting load lacks, by device, after earlier loads' claims.

        freeing: count the memory of models that are being unloaded as free.
        """
        lacking = {}
        for device, size in self._pending.waiting[name].needs[executor].items():
            budget = self._budget(device)
            if budget is None:
                continue
            claims = (
                load.needs[executor].get(device, 0) for _, load in self.claims(name, executor)
            )
            taken = self.used(executor, device) + sum(claims)
            if freeing:
                taken -= self._freeing(executor, device)
            if taken + size > budget:
                lacking[device] = taken + size - budget
        return lacking

    def claims(self, name: str, executor: str) -> list[tuple[str, PendingLoad]]:
        """Return the earlier loads for which models on an executor make way."""
        before = takewhile(lambda waiting: waiting[0] != name, self._pending.waiting.items())
        return [(other, load) for other, load in before if load.executor == executor]

    def fits_empty(self, load: PendingLoad, executor: str, kept: Container[str] = ()) -> bool:
        """Return whether a load would fit if all models but pinned ones and `kept` made way."""
        return not self._excesses(load, executor, kept)

    def refusal(self, load: PendingLoad, executors: Iterable[str]) -> str:
        """Return why a load fits none of these executors."""
        parts = []
        for executor in executors:
            for device, (size, budget, pinned) in self._excesses(load, executor).items():
                held = f", of which {pinned} are taken by models that stay loaded"
                parts.append(
                    f"it needs {size} bytes of {device} on executor '{executor}', whose budget"
                    f" is {budget}{held if pinned else ''}"
                )
        return "; ".join(parts)

    def _excesses(
        self, load: PendingLoad, executor: str, kept: Container[str] = ()
    ) -> dict[str, tuple[int, int, int]]:
        """Return each size that does not fit, its budget, and what models that stay take of it."""
        excesses = {}
        for device, size in sorted(load.needs[executor].items()):
            budget = self._budget(device)
            pinned = self._sum(
                executor,
                device,
                (model for name, model in self.models.items() if model.pinned or name in kept),
            )
            if budget is not None and size + pinned > budget:
                excesses[device] = size, budget, pinned
        return excesses

    def _freeing(self, executor: str, device: str) -> int:
        unloading = (model for model in self.models.values() if model.status is Status.UNLOADING)
        return self._sum(executor, device, unloading)

    @staticmethod
    def _sum(executor: str, device: str, models: Iterable[ModelInMemory]) -> int:
        return sum(model.taken.get(executor, {}).get(device, 0) for model in models)

    def _budget(self, device: str) -> int | None:
        return self.budgets.get(device, self.budgets.get(device.partition(" ")[0]))
