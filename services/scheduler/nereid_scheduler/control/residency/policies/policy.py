"""Which models that are loaded on demand are in memory, on which executor, and which make way.

A state machine without clock or event loop: events and what is known of the models' use in; loads
and unloads out. An executor's devices have budgets of memory; a model is placed on the first
executor, by name, that has enough of it (first fit), or else on the one whose least popular models
make way. Those that are in use, or pinned, never do. A popular model does not make way only because
the less popular ones are in use or being loaded: the model that needs the memory waits for those.

    OUT -> WAITING -> LOADING -> RESIDENT -> UNLOADING -> OUT
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    # Bytes by device: "cpu", or "gpu" and its number.
    Sizes = Mapping[str, int]


class Status(Enum):
    """Where a model is."""

    OUT = "out"
    # It is to be loaded as soon as others have made way.
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
# Bounds the work of one event, of those that wait: the first ones come first anyway.
_MOST_AT_A_TIME: Final = 16
_LOADED: Final = frozenset({Status.RESIDENT, Status.UNLOADING})
# Those whose memory is taken.
_IN_MEMORY: Final = frozenset({Status.LOADING, Status.RESIDENT, Status.UNLOADING})


class Usage(NamedTuple):
    """last_used: when it was executed last, on any clock; busy: it has requests or sequences;
    popularity: its requests, decayed (popularity.py); kept: it is busy for an ensemble that waits,
    and no end of its own requests changes that.
    """

    last_used: float = 0.0
    busy: bool = False
    popularity: float = 0.0
    kept: bool = False


class Load(NamedTuple):
    """Load a model. executor: on this one alone; empty: on all."""

    model: str
    executor: str = ""


class Refusal(NamedTuple):
    """A model that fits into no executor's budget, whatever makes way."""

    model: str
    reason: str


@dataclass(slots=True)
class Actions:
    """What to do now."""

    loads: list[Load] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


@dataclass(slots=True)
class _Model:
    status: Status = Status.OUT
    # By executor, what it needs there, as far as it is known; none: it cannot be there.
    needs: Mapping[str, Sizes] = field(default_factory=dict)
    # What it takes now, or what is reserved for it while it loads.
    taken: dict[str, Sizes] = field(default_factory=dict)
    # WAITING: where others make way for it.
    claimed: str = ""
    pinned: bool = False
    # It was requested again while it was being unloaded.
    wanted: bool = False


_UNKNOWN: Final = Usage()
# Before every rank.
_NOTHING: Final = (-1.0, -1.0)


def _rank(model: str, usages: Mapping[str, Usage]) -> tuple[float, float]:
    """The smaller, the sooner it makes way."""
    usage = usages.get(model, _UNKNOWN)
    return usage.popularity, usage.last_used


class Residency:
    """The models by name. Every event returns what follows from it."""

    def __init__(self, budgets: Mapping[str, int]) -> None:
        """budgets: bytes of each executor's devices: of "cpu", of "gpu" (each), of "gpu 1"; one
        without has no limit. Without any, models are never unloaded, and are on all executors.
        """
        self.budgets = budgets
        self._executors: set[str] = set()
        self._models: dict[str, _Model] = {}
        # Those that take memory: few, where there are many models.
        self._in_memory: dict[str, _Model] = {}
        # In the order of their requests.
        self._waiting: dict[str, None] = {}
        self._stalled = False

    # ---- views

    def status(self, model: str) -> Status:
        found = self._models.get(model)
        return Status.OUT if found is None else found.status

    @property
    def waiting(self) -> list[str]:
        """The models that wait for others to make way, or for an executor; first come first."""
        return list(self._waiting)

    def executors_of(self, model: str) -> tuple[str, ...]:
        """Where it is, or is being loaded; empty: nowhere, or wherever executors are."""
        found = self._models.get(model)
        return () if found is None else tuple(found.taken)

    def fits_beside(self, model: str, kept: Container[str]) -> bool:
        """Whether a model that waits would fit somewhere if all made way but these models."""
        found = self._models[model]
        hosts = self._executors & found.needs.keys()
        return not hosts or any(self._fits_empty(found, each, kept) for each in hosts)

    def used(self, executor: str, device: str) -> int:
        """The bytes that models take, or that are reserved for them."""
        return sum(each.taken.get(executor, {}).get(device, 0) for each in self._in_memory.values())

    def free(self, executor: str) -> dict[str, int]:
        """By device in use, the bytes of its budget that no model takes."""
        budgets = ((device, self._budget(device)) for device in self._devices(executor))
        return {
            device: max(0, budget - self.used(executor, device))
            for device, budget in budgets
            if budget is not None
        }

    # ---- events

    def add_executor(self, executor: str, usages: Mapping[str, Usage]) -> Actions:
        self._executors.add(executor)
        return self._advance(usages)

    def remove_executor(self, executor: str, usages: Mapping[str, Usage]) -> Actions:
        """It is gone, with the models that it had. Those that were there alone are OUT."""
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
        """A model is needed. needs: by each executor that can have it, its sizes there; ignored
        without budgets.
        """
        found = self._models.setdefault(model, _Model())
        if found.status is Status.UNLOADING:
            found.wanted, found.needs = True, needs
        elif found.status is Status.WAITING:
            # Executors have come or gone since.
            found.needs = needs
            if found.claimed not in needs:
                found.claimed = ""
        elif found.status is Status.OUT:
            found.needs = needs
            self._enter(model, found, Status.WAITING)
            self._waiting[model] = None
        return self._advance(usages)

    def pin(self, model: str, taken: Mapping[str, Sizes]) -> None:
        """A model that is loaded for good takes this on executors. The next event counts it."""
        found = self._models.setdefault(model, _Model())
        self._waiting.pop(model, None)
        found.pinned, found.status, found.taken = True, Status.RESIDENT, dict(taken)
        self._in_memory[model] = found

    def loaded(
        self, model: str, taken: Mapping[str, Sizes], usages: Mapping[str, Usage]
    ) -> Actions:
        """A load has succeeded. taken: what it takes on executors, as measured; empty: what was
        reserved for it.
        """
        found = self._models[model]
        if found.status is Status.LOADING:
            self._enter(model, found, Status.RESIDENT)
        if taken and found.status is Status.RESIDENT:
            found.taken = dict(taken)
        return self._advance(usages)

    def load_failed(self, model: str, usages: Mapping[str, Usage]) -> Actions:
        return self._end(model, usages)

    def unloaded(self, model: str, usages: Mapping[str, Usage]) -> Actions:
        """Its memory is free, also if something else had it unloaded. One whose executor was lost
        meanwhile may have been requested again: that goes on.
        """
        if self.status(model) in _LOADED:
            return self._end(model, usages)
        return self._advance(usages)

    def forget(self, model: str, usages: Mapping[str, Usage]) -> Actions:
        """A model is no longer loaded on demand, nor pinned."""
        self._waiting.pop(model, None)
        self._in_memory.pop(model, None)
        self._models.pop(model, None)
        return self._advance(usages)

    def retry(self, usages: Mapping[str, Usage], *, stalled: bool = False) -> Actions:
        """Models may have become idle. stalled: nothing was loaded or unloaded for so long that
        those in use are not waited for.
        """
        self._stalled = stalled
        try:
            return self._advance(usages)
        finally:
            self._stalled = False

    # ---- decisions

    def _end(self, model: str, usages: Mapping[str, Usage]) -> Actions:
        found = self._models.get(model)
        if found is not None and found.status is not Status.OUT:
            found.pinned = False
            self._waiting.pop(model, None)
            self._leave(model, found)
        return self._advance(usages)

    def _leave(self, name: str, model: _Model) -> None:
        """It takes nothing any more."""
        self._enter(name, model, Status.OUT)
        model.taken.clear()
        model.claimed = ""
        if model.wanted:
            model.wanted = False
            self._enter(name, model, Status.WAITING)
            self._waiting[name] = None

    def _advance(self, usages: Mapping[str, Usage]) -> Actions:
        actions = Actions()
        for name in list(islice(self._waiting, _MOST_AT_A_TIME)):
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
            # Until an executor joins that can have it.
            return
        for executor in [model.claimed] if model.claimed in hosts else hosts:
            if self._short(name, executor, freeing=False) == {}:
                self._begin_load(name, model, executor, actions)
                return
        possible = [each for each in hosts if self._fits_empty(model, each)]
        if not possible:
            del self._waiting[name]
            self._enter(name, model, Status.OUT)
            actions.refusals.append(Refusal(name, self._refusal(model, hosts)))
            return
        if model.claimed in possible:
            possible = [model.claimed]
        plans = [(each, self._victims(name, each, usages)) for each in possible]
        feasible = [(each, victims) for each, victims in plans if victims is not None]
        if not feasible:
            # All that could make way is in use.
            return
        executor, victims = min(
            feasible,
            key=lambda each: max((_rank(v, usages) for v in each[1]), default=_NOTHING),
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
        """A model may have turned out to be larger than it was thought to be."""
        for executor in sorted(self._executors):
            for device in self._devices(executor):
                over = self._excess(executor, device)
                for victim in self._evictable(executor, usages) if over > 0 else ():
                    size = self._models[victim].taken[executor].get(device, 0)
                    if over > 0 and size:
                        over -= size
                        self._begin_unload(victim, actions)

    def _excess(self, executor: str, device: str) -> int:
        """By how much the budget is exceeded once all is unloaded that is being unloaded."""
        budget = self._budget(device)
        if budget is None:
            return 0
        return self.used(executor, device) - self._freeing(executor, device) - budget

    def _victims(self, name: str, executor: str, usages: Mapping[str, Usage]) -> list[str] | None:
        """The least popular models whose memory is enough; None: there are not."""
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
        """Whether a model that is less popular than one of these will make way before long: it is
        in use, is being loaded, or is to be before the model of this name.
        """
        most = max((usages.get(each, _UNKNOWN).popularity for each in victims), default=0.0)
        before = takewhile(lambda each: each != name, self._waiting)
        claims = [each for each in before if self._models[each].claimed == executor]
        for each in (*claims, *self._in_memory):
            model, usage = self._models[each], usages.get(each, _UNKNOWN)
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
        """Those that may be unloaded, the least popular first, of equals the one that was used
        least recently.
        """
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
        """The bytes by device that are missing for a model that waits; what those before it in the
        queue have claimed is theirs.

        freeing: once all is unloaded that is being unloaded; else now.
        """
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
        before = (
            self._models[each] for each in takewhile(lambda each: each != name, self._waiting)
        )
        return sum(
            model.needs[executor].get(device, 0) for model in before if model.claimed == executor
        )

    def _freeing(self, executor: str, device: str) -> int:
        return sum(
            each.taken.get(executor, {}).get(device, 0)
            for each in self._in_memory.values()
            if each.status is Status.UNLOADING
        )

    def _fits_empty(self, model: _Model, executor: str, kept: Container[str] = ()) -> bool:
        """Whether it would fit if all but pinned models, and these, made way."""
        for device, size in model.needs[executor].items():
            budget = self._budget(device)
            if budget is not None and size + self._pinned(executor, device, kept) > budget:
                return False
        return True

    def _pinned(self, executor: str, device: str, kept: Container[str] = ()) -> int:
        return sum(
            each.taken.get(executor, {}).get(device, 0)
            for name, each in self._in_memory.items()
            if each.pinned or name in kept
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
            device for each in self._in_memory.values() for device in each.taken.get(executor, ())
        }
        return sorted(devices)

    def _budget(self, device: str) -> int | None:
        """None: no limit."""
        return self.budgets.get(device, self.budgets.get(device.partition(" ")[0]))

    def _enter(self, name: str, model: _Model, status: Status) -> None:
        assert status in _TRANSITIONS[model.status], f"{model.status} -> {status}"
        model.status = status
        if status in _IN_MEMORY:
            self._in_memory[name] = model
        else:
            self._in_memory.pop(name, None)
