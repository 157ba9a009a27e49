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
from enum import Enum
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    # Maps a device to bytes. Devices are "cpu", or "gpu" and a number.
    Sizes = Mapping[str, int]


class Status(Enum):
    """State of a model."""

    OUT = "out"
    WAITING = "waiting"
    LOADING = "loading"
    RESIDENT = "resident"
    UNLOADING = "unloading"


_TRANSITIONS: Final = {
    Status.OUT: {Status.WAITING},
    Status.WAITING: {Status.LOADING, Status.OUT},
    Status.LOADING: {Status.RESIDENT, Status.OUT},
    Status.RESIDENT: {Status.UNLOADING, Status.OUT},
    Status.UNLOADING: {Status.OUT},
}
_MAX_AT_A_TIME: Final = 16
_LOADED: Final = frozenset({Status.RESIDENT, Status.UNLOADING})
_IN_MEMORY: Final = frozenset({Status.LOADING, Status.RESIDENT, Status.UNLOADING})


class Usage(NamedTuple):
    """The use of a model, as far as decisions depend on it."""

    # Time of the last execution, by any clock.
    last_used: float = 0.0
    busy: bool = False
    popularity: float = 0.0
    # True if the model is busy because an ensemble waits for it.
    kept: bool = False


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


@dataclass(slots=True)
class _Model:
    status: Status = Status.OUT
    # Sizes by executor. The model cannot be on any other executor.
    needs: Mapping[str, Sizes] = field(default_factory=dict)
    # Memory by executor. It is reserved while the model loads.
    taken: dict[str, Sizes] = field(default_factory=dict)
    # While the model is WAITING: the executor on which other models make way for it.
    claimed: str = ""
    pinned: bool = False
    # True if the model was requested again while it was being unloaded.
    wanted: bool = False


_UNKNOWN: Final = Usage()
_NOTHING: Final = (-1.0, -1.0)


def _rank(model: str, usages: Mapping[str, Usage]) -> tuple[float, float]:
    usage = usages.get(model, _UNKNOWN)
    return usage.popularity, usage.last_used


class Residency:
    """Keeps the states of models, by name. Every event returns the actions to carry out."""

    def __init__(self, budgets: Mapping[str, int]) -> None:
        """budgets: maximum bytes for "cpu", for "gpu" (each GPU) or for one GPU, as "gpu 1".

        A device without a budget has no limit. Without any budget, models are loaded on all
        executors and never unloaded.
        """
        self.budgets = budgets
        self._executors: set[str] = set()
        self._models: dict[str, _Model] = {}
        self._in_memory: dict[str, _Model] = {}
        self._waiting: dict[str, None] = {}
        self._stalled = False

    def status(self, model: str) -> Status:
        """Return the state of a model."""
        found = self._models.get(model)
        return Status.OUT if found is None else found.status

    @property
    def waiting(self) -> list[str]:
        """Models that wait for others to make way, or for an executor, in order of arrival."""
        return list(self._waiting)

    def executors_of(self, model: str) -> tuple[str, ...]:
        """Return the executors that have or load a model; always empty without budgets."""
        found = self._models.get(model)
        return () if found is None else tuple(found.taken)

    def fits_beside(self, model: str, kept: Container[str]) -> bool:
        """Return whether a waiting model would fit if all models but those in `kept` made way."""
        found = self._models[model]
        hosts = self._executors & found.needs.keys()
        return not hosts or any(self._fits_empty(found, executor, kept) for executor in hosts)

    def used(self, executor: str, device: str) -> int:
        """Return the bytes on a device that models take or that are reserved for models."""
        models = self._in_memory.values()
        return sum(model.taken.get(executor, {}).get(device, 0) for model in models)

    def free(self, executor: str) -> dict[str, int]:
        """Return the bytes of the budget that no model takes, for each device in use."""
        budgets = ((device, self._budget(device)) for device in self._devices(executor))
        return {
            device: max(0, budget - self.used(executor, device))
            for device, budget in budgets
            if budget is not None
        }

    def add_executor(self, executor: str, usages: Mapping[str, Usage]) -> Actions:
        """Add an executor that has joined."""
        self._executors.add(executor)
        return self._advance(usages)

    def remove_executor(self, executor: str, usages: Mapping[str, Usage]) -> Actions:
        """Remove a lost executor. Models that only this executor had become OUT."""
        self._executors.discard(executor)
        for name in self._waiting:
            if self._models[name].claimed == executor:
                self._models[name].claimed = ""
        for name, model in list(self._in_memory.items()):
            if model.taken.pop(executor, None) is None or model.pinned:
                continue
            if not model.taken:
                self._leave(name, model)
        return self._advance(usages)

    def request(
        self, model: str, needs: Mapping[str, Sizes], usages: Mapping[str, Usage]
    ) -> Actions:
        """Have a model loaded. `needs`: sizes by executor; without budgets they are ignored."""
        found = self._models.setdefault(model, _Model())
        if found.status is Status.UNLOADING:
            found.wanted, found.needs = True, needs
        elif found.status is Status.WAITING:
            # The executors may have changed since the first request.
            found.needs = needs
            if found.claimed not in needs:
                found.claimed = ""
        elif found.status is Status.OUT:
            found.needs = needs
            self._enter(model, found, Status.WAITING)
            self._waiting[model] = None
        return self._advance(usages)

    def pin(self, model: str, taken: Mapping[str, Sizes]) -> None:
        """Count the memory of a model that is loaded for good. It counts from the next event on."""
        found = self._models.setdefault(model, _Model())
        self._waiting.pop(model, None)
        found.pinned, found.status, found.taken = True, Status.RESIDENT, dict(taken)
        self._in_memory[model] = found

    def loaded(
        self, model: str, taken: Mapping[str, Sizes], usages: Mapping[str, Usage]
    ) -> Actions:
        """Note that a load has succeeded. If `taken` is empty, the reserved memory counts."""
        found = self._models[model]
        if found.status is Status.LOADING:
            self._enter(model, found, Status.RESIDENT)
        if taken and found.status is Status.RESIDENT:
            found.taken = dict(taken)
        return self._advance(usages)

    def load_failed(self, model: str, usages: Mapping[str, Usage]) -> Actions:
        """Note that a load has failed."""
        return self._end(model, usages)

    def unloaded(self, model: str, usages: Mapping[str, Usage]) -> Actions:
        """Note that a model's memory is free. A request that came meanwhile goes on."""
        if self.status(model) in _LOADED:
            return self._end(model, usages)
        return self._advance(usages)

    def forget(self, model: str, usages: Mapping[str, Usage]) -> Actions:
        """Forget a model that is no longer loaded on demand, and is not pinned."""
        self._waiting.pop(model, None)
        self._in_memory.pop(model, None)
        self._models.pop(model, None)
        return self._advance(usages)

    def retry(self, usages: Mapping[str, Usage], *, stalled: bool = False) -> Actions:
        """Decide again. `stalled`: do not wait for less popular models that are in use."""
        self._stalled = stalled
        try:
            return self._advance(usages)
        finally:
            self._stalled = False

    def _end(self, model: str, usages: Mapping[str, Usage]) -> Actions:
        found = self._models.get(model)
        if found is not None and found.status is not Status.OUT:
            found.pinned = False
            self._waiting.pop(model, None)
            self._leave(model, found)
        return self._advance(usages)

    def _leave(self, name: str, model: _Model) -> None:
        self._enter(name, model, Status.OUT)
        model.taken.clear()
        model.claimed = ""
        if model.wanted:
            model.wanted = False
            self._enter(name, model, Status.WAITING)
            self._waiting[name] = None

    def _advance(self, usages: Mapping[str, Usage]) -> Actions:
        actions = Actions()
        for name in list(islice(self._waiting, _MAX_AT_A_TIME)):
            self._place(name, self._models[name], usages, actions)
        self._relieve(usages, actions)
        return actions

    def _place(
        self, name: str, model: _Model, usages: Mapping[str, Usage], actions: Actions
    ) -> None:
        if not self.budgets:
            self._begin_load(name, model, "", actions)
            return
        hosts = sorted(self._executors & model.needs.keys())
        if not hosts:
            return
        for executor in [model.claimed] if model.claimed in hosts else hosts:
            if self._short(name, executor, freeing=False) == {}:
                self._begin_load(name, model, executor, actions)
                return
        possible = [executor for executor in hosts if self._fits_empty(model, executor)]
        if not possible:
            del self._waiting[name]
            self._enter(name, model, Status.OUT)
            actions.refusals.append(Refusal(name, self._refusal(model, hosts)))
            return
        if model.claimed in possible:
            possible = [model.claimed]
        plans = [(executor, self._victims(name, executor, usages)) for executor in possible]
        feasible = [(executor, victims) for executor, victims in plans if victims is not None]
        if not feasible:
            return
        executor, victims = min(
            feasible,
            key=lambda plan: max((_rank(victim, usages) for victim in plan[1]), default=_NOTHING),
        )
        model.claimed = executor
        for victim in victims:
            self._begin_unload(victim, actions)

    def _begin_unload(self, name: str, actions: Actions) -> None:
        self._enter(name, self._models[name], Status.UNLOADING)
        actions.unloads.append(name)

    def _begin_load(self, name: str, model: _Model, executor: str, actions: Actions) -> None:
        del self._waiting[name]
        self._enter(name, model, Status.LOADING)
        model.claimed = ""
        if executor:
            model.taken = {executor: model.needs[executor]}
        actions.loads.append(Load(name, executor))

    def _relieve(self, usages: Mapping[str, Usage], actions: Actions) -> None:
        """Unload models where a budget is exceeded, since some may be larger than expected."""
        for executor in sorted(self._executors):
            for device in self._devices(executor):
                over = self._excess(executor, device)
                for victim in self._evictable(executor, usages) if over > 0 else ():
                    size = self._models[victim].taken[executor].get(device, 0)
                    if over > 0 and size:
                        over -= size
                        self._begin_unload(victim, actions)

    def _excess(self, executor: str, device: str) -> int:
        budget = self._budget(device)
        if budget is None:
            return 0
        return self.used(executor, device) - self._freeing(executor, device) - budget

    def _victims(self, name: str, executor: str, usages: Mapping[str, Usage]) -> list[str] | None:
        """Return the least popular models whose memory suffices; `None` if there are none now."""
        short = self._short(name, executor, freeing=True)
        victims: list[str] = []
        for victim in self._evictable(executor, usages):
            taken = self._models[victim].taken[executor]
            if not any(taken.get(device, 0) for device in short):
                continue
            victims.append(victim)
            short = {
                device: left
                for device, size in short.items()
                if (left := size - taken.get(device, 0)) > 0
            }
            if not short:
                break
        if short or self._should_await_less_popular(name, executor, victims, usages):
            return None
        return victims

    def _should_await_less_popular(
        self, name: str, executor: str, victims: Iterable[str], usages: Mapping[str, Usage]
    ) -> bool:
        """Return whether a model less popular than a victim will soon make way instead."""
        most = max((usages.get(victim, _UNKNOWN).popularity for victim in victims), default=0.0)
        before = takewhile(lambda waiting: waiting != name, self._waiting)
        claims = [waiting for waiting in before if self._models[waiting].claimed == executor]
        for other in (*claims, *self._in_memory):
            model, usage = self._models[other], usages.get(other, _UNKNOWN)
            if usage.kept or model.pinned or usage.popularity >= most:
                continue
            if model.status is Status.WAITING:
                return True
            if executor in model.taken and (
                model.status is Status.LOADING
                or (model.status is Status.RESIDENT and usage.busy and not self._stalled)
            ):
                return True
        return False

    def _evictable(self, executor: str, usages: Mapping[str, Usage]) -> list[str]:
        """Return the models that may be unloaded: least popular first, then least recently used."""
        idle = [
            name
            for name, model in self._in_memory.items()
            if model.status is Status.RESIDENT
            and not model.pinned
            and executor in model.taken
            and not usages.get(name, _UNKNOWN).busy
        ]
        return sorted(idle, key=lambda name: (_rank(name, usages), name))

    def _short(self, name: str, executor: str, *, freeing: bool) -> dict[str, int]:
        """Return the bytes that a waiting model lacks, by device, after earlier models' claims."""
        short = {}
        for device, size in self._models[name].needs[executor].items():
            budget = self._budget(device)
            if budget is None:
                continue
            taken = self.used(executor, device) + self._claims_before(name, executor, device)
            if freeing:
                taken -= self._freeing(executor, device)
            if taken + size > budget:
                short[device] = taken + size - budget
        return short

    def _claims_before(self, name: str, executor: str, device: str) -> int:
        before = takewhile(lambda waiting: waiting != name, self._waiting)
        models = (self._models[waiting] for waiting in before)
        return sum(
            model.needs[executor].get(device, 0) for model in models if model.claimed == executor
        )

    def _freeing(self, executor: str, device: str) -> int:
        return sum(
            model.taken.get(executor, {}).get(device, 0)
            for model in self._in_memory.values()
            if model.status is Status.UNLOADING
        )

    def _fits_empty(self, model: _Model, executor: str, kept: Container[str] = ()) -> bool:
        """Return whether a model would fit if all models but pinned ones and `kept` made way."""
        for device, size in model.needs[executor].items():
            budget = self._budget(device)
            if budget is not None and size + self._pinned(executor, device, kept) > budget:
                return False
        return True

    def _pinned(self, executor: str, device: str, kept: Container[str] = ()) -> int:
        return sum(
            model.taken.get(executor, {}).get(device, 0)
            for name, model in self._in_memory.items()
            if model.pinned or name in kept
        )

    def _refusal(self, model: _Model, hosts: Iterable[str]) -> str:
        parts = []
        for executor in hosts:
            for device, size in sorted(model.needs[executor].items()):
                budget, pinned = self._budget(device), self._pinned(executor, device)
                if budget is not None and size + pinned > budget:
                    held = f", of which {pinned} are taken by models that stay loaded"
                    parts.append(
                        f"it needs {size} bytes of {device} on executor '{executor}', whose budget"
                        f" is {budget}{held if pinned else ''}"
                    )
        return "; ".join(parts)

    def _devices(self, executor: str) -> list[str]:
        devices = {
            device for model in self._in_memory.values() for device in model.taken.get(executor, ())
        }
        return sorted(devices)

    def _budget(self, device: str) -> int | None:
        return self.budgets.get(device, self.budgets.get(device.partition(" ")[0]))

    def _enter(self, name: str, model: _Model, status: Status) -> None:
        assert status in _TRANSITIONS[model.status], f"{model.status} -> {status}"
        model.status = status
        if status in _IN_MEMORY:
            self._in_memory[name] = model
        else:
            self._in_memory.pop(name, None)
