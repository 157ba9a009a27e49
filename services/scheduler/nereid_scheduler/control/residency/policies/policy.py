"""Decides which models on demand are in memory, on which executors, and which make way.

A model is placed on the first executor, by name, that has enough memory (first fit). If none has
enough, the least popular models of one executor make way. Models that are in use or pinned never
make way. If less popular models are in use or being loaded, a popular model does not make way in
their place: the model that needs the memory waits for the less popular ones.

    state      event                                               next state
    OUT        it is requested                                     WAITING
    WAITING    an executor has enough memory                       LOADING
    WAITING    it fits into no executor's budget                   OUT: refused
    LOADING    its load succeeds                                   RESIDENT
    LOADING    its load fails, or its only executor is lost        OUT
    RESIDENT   another model needs its memory, or a budget is      UNLOADING
               exceeded
    RESIDENT   it is unloaded otherwise, or its only executor      OUT
               is lost
    UNLOADING  it is unloaded, or its only executor is lost        OUT, or WAITING if it was
                                                                   requested meanwhile
    any        it is loaded for good                               RESIDENT, and pinned
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid_scheduler.control.residency.policies.model_memory import (
    ModelInMemory,
    ModelMemory,
    Status,
)
from nereid_scheduler.core.models.on_demand_models import PendingLoads

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from nereid_scheduler.control.residency.policies.model_memory import Sizes
    from nereid_scheduler.core.models.on_demand_models import PendingLoad

_MAX_AT_A_TIME: Final = 16
_LOADED: Final = frozenset({Status.RESIDENT, Status.UNLOADING})


class Usage(NamedTuple):
    """The use of a model, as far as decisions depend on it."""

    # Monotonic time of the last use.
    last_used: float = 0.0
    busy: bool = False
    popularity: float = 0.0
    # True if the model is busy because an ensemble waits for it.
    needed_by_ensemble: bool = False


class Load(NamedTuple):
    """A load of a model on one executor. An empty `executor` stands for all executors."""

    model: str
    executor: str = ""


class Refusal(NamedTuple):
    """Refusal of a model that fits no executor's budget, whatever other models make way."""

    model: str
    reason: str


@dataclass(slots=True)
class Actions:
    """Loads, unloads and refusals to carry out now."""

    loads: list[Load] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


_UNKNOWN: Final = Usage()
_NOTHING: Final = (-1.0, -1.0)


def _rank(model: str, usages: Mapping[str, Usage]) -> tuple[float, float]:
    usage = usages.get(model, _UNKNOWN)
    return usage.popularity, usage.last_used


class Residency:
    """Keeps the states of models, by name. Every event returns the actions to carry out."""

    def __init__(self, budgets: Mapping[str, int], pending: PendingLoads | None = None) -> None:
        """budgets: maximum bytes for "cpu", for "gpu" (each GPU) or for one GPU, as "gpu 1".

        A device without a budget has no limit. Without any budget, models are loaded on all
        executors and never unloaded.
        """
        self._pending = PendingLoads() if pending is None else pending
        self.memory = ModelMemory(budgets, self._pending)
        self._executors: set[str] = set()
        self._models = self.memory.models
        self._stalled = False

    def status(self, name: str) -> Status:
        """Return the state of a model."""
        if name in self._models:
            return self._models[name].status
        return Status.WAITING if name in self._pending.waiting else Status.OUT

    @property
    def waiting(self) -> list[str]:
        """Models that wait for others to make way, or for an executor, in order of arrival."""
        return [name for name in self._pending.waiting if name not in self._models]

    def executors_of(self, name: str) -> tuple[str, ...]:
        """Return the executors that have or load a model; always empty without budgets."""
        return tuple(self._models[name].taken) if name in self._models else ()

    def fits_beside(self, name: str, kept: Container[str]) -> bool:
        """Return whether a waiting model would fit if all models but those in `kept` made way."""
        load = self._pending.waiting[name]
        hosts = self._executors & load.needs.keys()
        return not hosts or any(self.memory.fits_empty(load, host, kept) for host in hosts)

    def add_executor(self, executor: str, usages: Mapping[str, Usage]) -> Actions:
        """Add an executor that has joined."""
        self._executors.add(executor)
        return self._advance(usages)

    def remove_executor(self, executor: str, usages: Mapping[str, Usage]) -> Actions:
        """Remove a lost executor. Models that only this executor had become OUT."""
        self._executors.discard(executor)
        for load in self._pending.waiting.values():
            if load.executor == executor:
                load.executor = ""
        for name, model in list(self._models.items()):
            if model.taken.pop(executor, None) is not None and not (model.taken or model.pinned):
                del self._models[name]
        return self._advance(usages)

    def request(
        self, name: str, needs: Mapping[str, Sizes], usages: Mapping[str, Usage]
    ) -> Actions:
        """Have a model loaded. `needs`: sizes by executor; without budgets they are ignored."""
        if name not in self._models or self._models[name].status is Status.UNLOADING:
            self._pending.await_memory(name, needs)
        return self._advance(usages)

    def pin(self, name: str, taken: Mapping[str, Sizes]) -> None:
        """Count the memory of a model that is loaded for good. It counts from the next event on."""
        self._pending.stop_waiting(name)
        self._models[name] = ModelInMemory(Status.RESIDENT, dict(taken), pinned=True)

    def loaded(self, name: str, taken: Mapping[str, Sizes], usages: Mapping[str, Usage]) -> Actions:
        """Note that a load has succeeded. If `taken` is empty, the reserved memory counts."""
        model = self._models[name]
        if model.status is Status.LOADING:
            model.status = Status.RESIDENT
        if taken and model.status is Status.RESIDENT:
            model.taken = dict(taken)
        return self._advance(usages)

    def load_failed(self, name: str, usages: Mapping[str, Usage]) -> Actions:
        """Note that a load has failed."""
        self._models.pop(name, None)
        return self._advance(usages)

    def unloaded(self, name: str, usages: Mapping[str, Usage]) -> Actions:
        """Note that a model's memory is free. A request that came meanwhile goes on."""
        if self.status(name) in _LOADED:
            del self._models[name]
        return self._advance(usages)

    def forget(self, name: str, usages: Mapping[str, Usage]) -> Actions:
        """Forget a model that is no longer loaded on demand, and is not pinned."""
        self._pending.stop_waiting(name)
        self._models.pop(name, None)
        return self._advance(usages)

    def retry(self, usages: Mapping[str, Usage], *, stalled: bool = False) -> Actions:
        """Decide again. `stalled`: do not wait for less popular models that are in use."""
        self._stalled = stalled
        try:
            return self._advance(usages)
        finally:
            self._stalled = False

    def _advance(self, usages: Mapping[str, Usage]) -> Actions:
        actions = Actions()
        for name in self.waiting[:_MAX_AT_A_TIME]:
            self._place(name, self._pending.waiting[name], usages, actions)
        self._relieve(usages, actions)
        return actions

    def _place(
        self, name: str, load: PendingLoad, usages: Mapping[str, Usage], actions: Actions
    ) -> None:
        if not self.memory.budgets:
            self._begin_load(name, load, "", actions)
            return
        hosts = sorted(self._executors & load.needs.keys())
        if not hosts:
            return
        for executor in [load.executor] if load.executor in hosts else hosts:
            if not self.memory.lacking(name, executor, freeing=False):
                self._begin_load(name, load, executor, actions)
                return
        possible = [executor for executor in hosts if self.memory.fits_empty(load, executor)]
        if not possible:
            self._pending.stop_waiting(name)
            actions.refusals.append(Refusal(name, self.memory.refusal(load, hosts)))
            return
        if load.executor in possible:
            possible = [load.executor]
        plans = [(executor, self._victims(name, executor, usages)) for executor in possible]
        feasible = [(executor, victims) for executor, victims in plans if victims is not None]
        if not feasible:
            return
        load.executor, victims = min(
            feasible,
            key=lambda plan: max((_rank(victim, usages) for victim in plan[1]), default=_NOTHING),
        )
        for victim in victims:
            self._begin_unload(victim, actions)

    def _begin_unload(self, name: str, actions: Actions) -> None:
        self._models[name].status = Status.UNLOADING
        actions.unloads.append(name)

    def _begin_load(self, name: str, load: PendingLoad, executor: str, actions: Actions) -> None:
        taken = {executor: load.needs[executor]} if executor else {}
        self._models[name] = ModelInMemory(Status.LOADING, taken)
        self._pending.stop_waiting(name)
        actions.loads.append(Load(name, executor))

    def _relieve(self, usages: Mapping[str, Usage], actions: Actions) -> None:
        """Unload models where a budget is exceeded, since some may be larger than expected."""
        for executor in sorted(self._executors):
            for device in self.memory.devices(executor):
                over = self.memory.excess(executor, device)
                for victim in self._evictable(executor, usages) if over > 0 else ():
                    size = self._models[victim].taken[executor].get(device, 0)
                    if over > 0 and size:
                        over -= size
                        self._begin_unload(victim, actions)

    def _victims(self, name: str, executor: str, usages: Mapping[str, Usage]) -> list[str] | None:
        """Return the least popular models whose memory suffices; `None` if there are none now."""
        lacking = self.memory.lacking(name, executor, freeing=True)
        victims: list[str] = []
        for victim in self._evictable(executor, usages):
            taken = self._models[victim].taken[executor]
            if not any(taken.get(device, 0) for device in lacking):
                continue
            victims.append(victim)
            lacking = {
                device: left
                for device, size in lacking.items()
                if (left := size - taken.get(device, 0)) > 0
            }
            if not lacking:
                break
        if lacking or self._should_await_less_popular(name, executor, victims, usages):
            return None
        return victims

    def _should_await_less_popular(
        self, name: str, executor: str, victims: Iterable[str], usages: Mapping[str, Usage]
    ) -> bool:
        """Return whether a model less popular than a victim will soon make way instead."""
        most = max((usages.get(victim, _UNKNOWN).popularity for victim in victims), default=0.0)

        def may_make_way(other: str) -> bool:
            usage = usages.get(other, _UNKNOWN)
            return usage.popularity < most and not usage.needed_by_ensemble

        if any(may_make_way(other) for other, _ in self.memory.claims(name, executor)):
            return True
        for other, model in self._models.items():
            if executor not in model.taken or model.pinned or not may_make_way(other):
                continue
            busy = usages.get(other, _UNKNOWN).busy and not self._stalled
            if model.status is Status.LOADING or (model.status is Status.RESIDENT and busy):
                return True
        return False

    def _evictable(self, executor: str, usages: Mapping[str, Usage]) -> list[str]:
        """Return the models that may be unloaded: least popular first, then least recently used."""
        idle = [
            name
            for name, model in self._models.items()
            if model.status is Status.RESIDENT
            and not model.pinned
            and executor in model.taken
            and not usages.get(name, _UNKNOWN).busy
        ]
        return sorted(idle, key=lambda name: (_rank(name, usages), name))
