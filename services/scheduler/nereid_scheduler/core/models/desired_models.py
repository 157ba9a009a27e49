"""State machine of the models that are to be served, without clock or event loop.

Each change of a model's desired state is a *generation*. The generations of one model form a
queue and take effect one after another:

    state      event                                             next state
    queued     all earlier generations of the model have ended   due
    due        an action begins that only finds or reads         busy, searching
    due        an action begins that changes something           busy, acted on
    searching  it has found the model, its steps or its record   due
    searching  the model is not to be loaded any more            superseded, and due
    acted on   the action has ended                              ended, with an error or without

A generation that moves a model to another scheduler takes effect at once. next_action.py decides
on the action for a generation that is due; the reconciler carries it out and reports here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid_scheduler.core.models.dependencies import step_models
from nereid_scheduler.core.models.last_loads import LastLoads
from nereid_scheduler.core.models.on_demand_models import OnDemandModels, PendingLoads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.errors import NereidError
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.core.models.model_record import ModelRecord
    from nereid_scheduler.core.models.overrides import Override
    from nereid_scheduler.core.models.version_change import VersionChange


class Reason(Enum):
    """Reason for a generation: why the scheduler is to serve the model, or to stop serving it."""

    INITIAL = "it is in a repository, or a flag names it"
    RECORDED = "a client had loaded it before the start"
    TAKEN_OVER = "another scheduler had it"
    BY_NAME = "a client loads it"
    STEP = "an ensemble that a client loads has a step of it"
    ON_DEMAND = "a request needs it"
    POLLED = "its files have changed"
    UNLOADED = "a client unloads it, or it was deleted"
    RELEASED = "it makes way, and is loaded again on demand"
    MOVED = "another scheduler has it now"


# Loads with these reasons wait for executors without a time limit.
PATIENT: Final = frozenset({Reason.INITIAL, Reason.RECORDED, Reason.TAKEN_OVER})
# Loads with these reasons continue the model's counters. A model on demand may have been served by
# a scheduler that has ended.
CONTINUING: Final = PATIENT | {Reason.ON_DEMAND}


class Cause(NamedTuple):
    """Why a version is loaded or unloaded, and the principal that asks for it, or empty."""

    text: str = ""
    principal: str = ""


NO_CAUSE: Final = Cause()


@dataclass(slots=True, eq=False)
class DesiredModel:
    """One generation of a model: its desired state until the next generation."""

    name: str
    reason: Reason
    found: FoundModel | None = None
    override: Override | None = None
    # The only executors that load the model; `None` means all executors.
    hosts: frozenset[str] | None = None
    # Change of the versions in service; `None` means those of the version policy.
    change: VersionChange | None = None
    record: ModelRecord | None = None
    # True until the files that the record names have been read.
    files_pending: bool = False
    # Models of an ensemble's steps that are not served, including those of inner ensembles.
    steps: dict[str, FoundModel] = field(default_factory=dict)
    # Generations that must end before an ensemble is loaded.
    needs: tuple[DesiredModel, ...] | None = None
    busy: bool = False
    acted_on: bool = False
    superseded: bool = False
    ended: bool = False
    # Client that asks for it; empty if nobody is known to.
    principal: str = ""
    # The argument is `None` if the model is as desired.
    on_end: Callable[[NereidError | None], None] | None = None

    @property
    def cause(self) -> Cause:
        """Why the model is loaded or unloaded."""
        return Cause(self.reason.value, self.principal)

    @property
    def searching(self) -> bool:
        """True if the generation waits for a record or its files, which may never come."""
        unknown = self.files_pending or (self.reason is Reason.TAKEN_OVER and self.found is None)
        return unknown and not self.acted_on


class DesiredModels:
    """Desired states of all models of one scheduler, by the models' qualified names."""

    def __init__(
        self, requested: Iterable[str] = (), on_due: Callable[[], None] = lambda: None
    ) -> None:
        """Start with the models that the flags name. on_due: called when an action may be due."""
        self._on_due = on_due
        # Models that were loaded by name, and are not unloaded together with an ensemble.
        self.requested: set[str] = set(requested)
        # Models that requests wait for. Key: qualified name. Value: plain name.
        self.awaited: dict[str, str] = {}
        self.last_loads = LastLoads()
        # True until it is known which models were in service when the scheduler last ended.
        self.restoring = False
        # True until peers are known again, which have served this scheduler's models meanwhile.
        self.suspended = False
        # Models that move between live schedulers. The server is ready without them.
        self.moving: set[str] = set()
        # The server is ready without these models.
        self.on_demand = OnDemandModels()
        self.pending_loads = PendingLoads()
        self._queues: dict[str, deque[DesiredModel]] = {}
        self._due: dict[str, None] = {}
        self._moved: list[DesiredModel] = []
        # Ensembles and their steps, each of which waits for the models of its own steps.
        self._composing: dict[DesiredModel, None] = {}
        self._awaited_changed = False

    def add(  # noqa: PLR0913 (by keyword)
        self,
        name: str,
        reason: Reason,
        found: FoundModel | None = None,
        *,
        override: Override | None = None,
        hosts: frozenset[str] | None = None,
        change: VersionChange | None = None,
        record: ModelRecord | None = None,
        awaited_as: str = "",
        principal: str = "",
        on_end: Callable[[NereidError | None], None] | None = None,
    ) -> DesiredModel:
        """Add a generation after all earlier ones of the model, and return it.

        An unload, or a load with an override, goes before generations that wait for a record.
        awaited_as: plain name by which requests wait for the model.
        """
        model = DesiredModel(
            name, reason, found, override, hosts, change, principal=principal, on_end=on_end
        )
        if reason is Reason.MOVED:
            self._moved.append(model)
            self.last_loads.forget(name)
            self.requested.discard(name)
            self._on_due()
            return model
        if record is not None:
            self._set_record(model, record)
        if awaited_as:
            self.awaited[name] = awaited_as
        queue = self._queues.setdefault(name, deque())
        place = len(queue)
        if reason is Reason.UNLOADED or override is not None:
            # Do not wait for the model's record: how it was loaded no longer matters.
            place = next((at for at, queued in enumerate(queue) if queued.searching), place)
        queue.insert(place, model)
        self._set_due(name)
        return model

    def add_steps(self, model: DesiredModel, steps: Iterable[FoundModel]) -> list[DesiredModel]:
        """Add and return loads for an ensemble's steps, inner ensembles after their own steps."""
        added: dict[str, DesiredModel] = {}
        for found in steps:
            step = added[found.name] = self.add(
                found.name, Reason.STEP, found, principal=model.principal
            )
            step.needs = tuple(
                added[needed] for needed in step_models(found.draft) if needed in added
            )
            self._composing[step] = None
        model.needs = tuple(added.values())
        self._composing[model] = None
        self._set_due(model.name)
        return list(added.values())

    def stop_awaiting(self, is_chosen: Callable[[str], bool]) -> None:
        """Stop awaiting the models that `is_chosen` selects, as they will not be loaded."""
        for name in [awaited for awaited in self.awaited if is_chosen(awaited)]:
            self._end_awaiting(name)

    def require(self, names: Iterable[str]) -> None:
        """Count models as loaded by name. names: qualified names."""
        self.requested.update(names)

    def await_records(self, *, awaited: bool) -> None:
        """Set whether records of the models that were in service must still be read."""
        self.restoring = awaited

    def suspend(self) -> None:
        """Take no model over by its record yet, since a peer may still change the record."""
        self.suspended = True

    def resume(self) -> None:
        """Take models over from now on."""
        if self.suspended:
            self.suspended = False
            self._set_due(*self._queues)

    def begin_moves(self, names: Iterable[str]) -> set[str]:
        """Add models that move between live schedulers; return those that did not move before."""
        new = set(names) - self.moving
        self.moving |= new
        return new

    def end_moves(self, names: Iterable[str]) -> None:
        """Remove models whose move is over, or should be over by now."""
        self.moving.difference_update(names)

    def unwanted_loads(self) -> list[DesiredModel]:
        """Return loads in progress that an unload follows, of models that may have changed."""
        queues = [self._queues[name] for name in self._due if name in self._queues]
        return [
            queue[0]
            for queue in queues
            if queue[0].busy
            and queue[0].acted_on
            and any(queued.reason is Reason.UNLOADED for queued in queue if queued is not queue[0])
        ]

    def take_due(self) -> list[DesiredModel]:
        """Return the current generation of each model whose next action may have changed."""
        heads = [self._queues[name][0] for name in self._due if name in self._queues]
        due = self._moved + [head for head in heads if not head.busy]
        self._due.clear()
        self._moved = []
        return due

    def begin(self, model: DesiredModel, *, finds: bool) -> None:
        """Record that an action has begun. finds: True if it only finds or reads something."""
        model.busy = True
        model.acted_on = not finds

    def on_found(self, model: DesiredModel, models: Iterable[FoundModel]) -> None:
        """Store the result of a search: the model itself, or the models of its steps."""
        if model.superseded:
            return
        for found in models:
            if found.name != model.name:
                model.steps[found.name] = found
                continue
            model.found = found if model.hosts is None else replace(found, hosts=model.hosts)
            if model.reason is Reason.BY_NAME:
                self.last_loads.note_refusal(found)
                if found.error is None:
                    self.requested.add(model.name)
        model.files_pending = model.busy = False
        self._set_due(model.name)

    def on_record(
        self, model: DesiredModel, found: FoundModel | None, record: ModelRecord | None
    ) -> None:
        """Store a taken-over model's record. Without `found`, this scheduler must not load it."""
        if model.superseded:
            return
        model.busy = False
        model.found = found
        if found is None:
            model.superseded = True
        elif record is not None:
            self._set_record(model, record)
        self._set_due(model.name)

    def on_load_begun(self, model: DesiredModel) -> None:
        """Record that a load has begun, so that the model is no longer awaited."""
        assert model.found is not None, "loaded before it was found"
        self.last_loads.begin(model.found)
        self._end_awaiting(model.name)

    def on_refused(self, model: DesiredModel) -> None:
        """Record that a model cannot be loaded in the state in which it was found."""
        found = model.found
        assert found is not None, "refused before it was found"
        if found.error is None or model.reason is Reason.BY_NAME:
            return
        if model.reason in PATIENT:
            self.last_loads.refuse_first(found, recorded=model.record is not None)
        else:
            self.last_loads.begin(found)

    def on_unload(self, model: DesiredModel) -> None:
        """Record that an unload has begun."""
        self.last_loads.forget(model.name)
        if model.reason is Reason.UNLOADED:
            self.requested.discard(model.name)
            self._end_awaiting(model.name)

    def end(self, model: DesiredModel, error: NereidError | None = None) -> None:
        """End a generation. error: why the desired state was not reached; `None` if it was."""
        if model.ended:
            return
        model.ended = True
        if model.reason is not Reason.MOVED:
            queue = self._queues[model.name]
            queue.remove(model)
            if not queue:
                del self._queues[model.name]
            if model.reason in PATIENT and not any(queued.searching for queued in queue):
                self._end_awaiting(model.name)
            self._composing.pop(model, None)
            self._set_due(model.name, *(waiting.name for waiting in self._composing))
        if model.on_end is not None:
            model.on_end(error)

    def is_busy(self, name: str) -> bool:
        """Return whether an action on a model is in progress or is to follow."""
        return name in self._queues

    def pending_steps(self, name: str) -> list[str]:
        """Return the names of models that must be loaded before an ensemble that a client loads."""
        return [
            step.name
            for ensemble in self._composing
            if ensemble.name == name and ensemble.reason is Reason.BY_NAME
            for step in ensemble.needs or ()
        ]

    def take_awaited_changed(self) -> bool:
        """Return whether requests have stopped waiting for any model since the last call."""
        changed, self._awaited_changed = self._awaited_changed, False
        return changed

    def _set_due(self, *names: str) -> None:
        if not self._due:
            self._on_due()
        self._due.update(dict.fromkeys(names))

    def _set_record(self, model: DesiredModel, record: ModelRecord) -> None:
        assert model.found is not None, "how it is composed is found first"
        model.record = record
        model.files_pending = bool(record.files) and model.found.error is None
        if record.by_name:
            self.requested.add(model.name)

    def _end_awaiting(self, name: str) -> None:
        if self.awaited.pop(name, None) is not None:
            self._awaited_changed = True
            self._on_due()
        for generation in self._queues.get(name, ()):
            if generation.searching:
                generation.superseded, generation.busy = True, False
                self._set_due(name)
