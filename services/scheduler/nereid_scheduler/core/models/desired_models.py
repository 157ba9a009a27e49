"""The models that flags, records, repositories, clients, other schedulers and requests ask for.

A state machine without clock or event loop. Each change of what is desired of a model is a
generation of it; those of one model take effect one after another. next_action.py says how, the
reconciler does it and reports it here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from nereid_scheduler.core.models.dependencies import step_models
from nereid_scheduler.core.models.found_model import NotUnique
from nereid_scheduler.core.models.lifecycle import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.errors import NereidError
    from nereid_scheduler.control.state.model_records import ModelRecord
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.core.models.overrides import Override

_LATEST: Final = -1
_NOT_IN_MEMORY: Final = "not in memory; the next request loads it"


class Why(Enum):
    """Why a model is to be served, or not to be served any more."""

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


# Those that wait for executors without limit.
PATIENT: Final = frozenset({Why.INITIAL, Why.RECORDED, Why.TAKEN_OVER})
# Those whose counters go on: nobody loads the model anew. What was on demand may have been served
# by a scheduler that is gone.
CONTINUING: Final = PATIENT | {Why.ON_DEMAND}


@dataclass(slots=True, eq=False)
class DesiredModel:
    """One generation of a model: as it is desired until the next one.

    found: what to load; None: it has yet to be found. hosts: the only executors to load it; None:
    all. record: how a client had loaded it. needs: what is loaded before an ensemble.
    """

    name: str
    why: Why
    found: FoundModel | None = None
    override: Override | None = None
    hosts: frozenset[str] | None = None
    record: ModelRecord | None = None
    # The files that its record names have yet to be read.
    files_pending: bool = False
    # The models of an ensemble's steps that are not served, ensembles' steps included.
    steps: dict[str, FoundModel] = field(default_factory=dict)
    needs: tuple[DesiredModel, ...] | None = None
    busy: bool = False
    # One that changes something has been begun.
    acted_on: bool = False
    # Something else is desired by now.
    superseded: bool = False
    ended: bool = False
    # Called with the error, or with None.
    on_end: Callable[[NereidError | None], None] | None = None

    @property
    def searching(self) -> bool:
        """Whether it waits for a record, which may take for ever."""
        unknown = self.files_pending or (self.why is Why.TAKEN_OVER and self.found is None)
        return unknown and not self.acted_on


@dataclass(slots=True)
class OnDemandModel:
    """A model that its first request loads, whether or not it is loaded now.

    wanted: its load is pending. error: why the last one failed; until a request has it tried again.
    failed_s: when that was (monotonic); since_ms: when it was loaded, on the clock of statistics.
    """

    found: FoundModel
    wanted: bool = False
    error: NereidError | None = None
    failed_s: float = 0.0
    since_ms: float = 0.0

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def reason(self) -> str:
        """As the index shows it while it is not loaded."""
        if self.error is not None:
            return reason_of(self.error.code, self.error.message)
        return _NOT_IN_MEMORY

    def has(self, number: int) -> bool:
        """Whether a load brings this version; -1: any."""
        return number == _LATEST or number in self.found.versions


class DesiredModels:
    """All models of one scheduler by their qualified names."""

    def __init__(
        self, requested: Iterable[str] = (), on_due: Callable[[], None] = lambda: None
    ) -> None:
        """requested: models that the flags name. on_due: called when something is to be done."""
        self._on_due = on_due
        # Loaded by name: they are not unloaded with an ensemble.
        self.requested: set[str] = set(requested)
        # Models that are to be loaded and have yet to be found: plain names by qualified ones.
        self.awaited: dict[str, str] = {}
        # Why models could not be loaded when that was last tried, as the index shows it.
        self.refusals: dict[str, str] = {}
        # Models that were in service when the scheduler ended, and cannot even be found now.
        self.unrestored: set[str] = set()
        # Which models were in service when the scheduler ended is not yet known.
        self.restoring = False
        # Models that pass from one live scheduler to another: their requests wait for a moment, so
        # that they do not make the server unready.
        self.moving: set[str] = set()
        # Servers are ready without these.
        self.on_demand: dict[str, OnDemandModel] = {}
        self._queues: dict[str, deque[DesiredModel]] = {}
        # The names of models whose next action may have changed.
        self._due: dict[str, None] = {}
        self._moved: list[DesiredModel] = []
        # Ensembles that wait for the models of their steps.
        self._composing: dict[DesiredModel, None] = {}
        # FoundModel.digest of each model when it was last loaded or refused.
        self._digests: dict[str, bytes] = {}
        # Models whose last load failed: loading them again is worthwhile without a change.
        self._failed: set[str] = set()
        self._awaited_changed = False

    # ---- what is desired

    def add(  # noqa: PLR0913 (by keyword)
        self,
        name: str,
        why: Why,
        found: FoundModel | None = None,
        *,
        override: Override | None = None,
        hosts: frozenset[str] | None = None,
        record: ModelRecord | None = None,
        awaited_as: str = "",
        on_end: Callable[[NereidError | None], None] | None = None,
    ) -> DesiredModel:
        """After all that was desired of a model before. awaited_as: the plain name by which
        requests wait for it from now on.
        """
        model = DesiredModel(name, why, found, override, hosts, on_end=on_end)
        if why is Why.MOVED:
            # Beside whatever is being done with it.
            self._moved.append(model)
            self._forget(name)
            self.requested.discard(name)
            self._on_due()
            return model
        if record is not None:
            self._set_record(model, record)
        if awaited_as:
            self.awaited[name] = awaited_as
        queue = self._queues.setdefault(name, deque())
        place = len(queue)
        if why is Why.UNLOADED or override is not None:
            # How the model was loaded before does not matter.
            place = next((at for at, each in enumerate(queue) if each.searching), place)
        queue.insert(place, model)
        self._set_due(name)
        return model

    def add_steps(self, model: DesiredModel, steps: Iterable[FoundModel]) -> list[DesiredModel]:
        """The models of an ensemble's steps, in the order of their loads, are to be loaded before
        it, those that are ensembles after their own.
        """
        added: dict[str, DesiredModel] = {}
        for found in steps:
            step = added[found.name] = self.add(found.name, Why.STEP, found)
            step.needs = tuple(added[each] for each in step_models(found.draft) if each in added)
            self._composing[step] = None
        model.needs = tuple(added.values())
        self._composing[model] = None
        self._set_due(model.name)
        return list(added.values())

    def stop_awaiting(self, is_chosen: Callable[[str], bool]) -> None:
        """Those of the models that are awaited are not to be loaded any more."""
        for name in [each for each in self.awaited if is_chosen(each)]:
            self._end_awaiting(name)

    def require(self, names: Iterable[str]) -> None:
        """Models that the flags name, as they were found."""
        self.requested.update(names)

    def defer(self, found: FoundModel) -> None:
        """The first request is to load this model, which was found for the first time, or again."""
        known = self.on_demand.setdefault(found.name, OnDemandModel(found))
        if known.found.digest != found.digest or found.url:
            # Other files, or a store that may have them by now.
            known.error = None
        known.found = found

    def end_deferring(self, name: str) -> None:
        """The model is loaded for good, or gone."""
        self.on_demand.pop(name, None)

    def await_records(self, *, awaited: bool) -> None:
        """Whether the models that were in service when the scheduler ended become known later."""
        self.restoring = awaited

    def begin_moves(self, names: Iterable[str]) -> set[str]:
        """Live schedulers pass these models to one another. Returns those of which this is news."""
        new = set(names) - self.moving
        self.moving |= new
        return new

    def end_moves(self, names: Iterable[str]) -> None:
        """These have been passed on, or should have been by now."""
        self.moving.difference_update(names)

    # ---- what was done about it

    def unwanted_loads(self) -> list[DesiredModel]:
        """What is being done, of models that are due, though they are to be unloaded after it."""
        queues = [self._queues[name] for name in self._due if name in self._queues]
        return [
            queue[0]
            for queue in queues
            if queue[0].busy
            and queue[0].acted_on
            and any(each.why is Why.UNLOADED for each in queue if each is not queue[0])
        ]

    def take_due(self) -> list[DesiredModel]:
        """What to look at now: the first of each model whose next action may have changed."""
        heads = [self._queues[name][0] for name in self._due if name in self._queues]
        due = self._moved + [each for each in heads if not each.busy]
        self._due.clear()
        self._moved = []
        return due

    def begin(self, model: DesiredModel, *, finds: bool) -> None:
        """An action for it is being carried out. finds: it only finds or reads something."""
        model.busy = True
        model.acted_on = not finds

    def on_found(self, model: DesiredModel, models: Iterable[FoundModel]) -> None:
        """Models that it was searched for: itself, or those of its steps."""
        if model.superseded:
            return
        for found in models:
            if found.name != model.name:
                model.steps[found.name] = found
                continue
            model.found = found if model.hosts is None else replace(found, hosts=model.hosts)
            if model.why is Why.BY_NAME:
                self._note_refusal(found)
                if found.error is None:
                    self.requested.add(model.name)
        model.files_pending = model.busy = False
        self._set_due(model.name)

    def on_record(
        self, model: DesiredModel, found: FoundModel | None, record: ModelRecord | None
    ) -> None:
        """How a model was loaded that is taken over. found None: it is not to be loaded here."""
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
        assert model.found is not None, "loaded before it was found"
        self._note_load(model.found)
        self._end_awaiting(model.name)

    def on_load_ended(self, model: DesiredModel, *, failed: bool, retried: bool) -> None:
        """retried: by the next poll, without a change."""
        if retried:
            self._digests.pop(model.name, None)
        if not failed:
            self._failed.discard(model.name)

    def on_load_wrote(self, found: FoundModel, after: FoundModel) -> None:
        """A model's load has changed its files, which are these now, and nobody else has."""
        if self._digests.get(found.name) == found.digest:
            self._digests[found.name] = after.digest

    def on_refused(self, model: DesiredModel) -> None:
        """A model cannot be loaded as it was found."""
        found = model.found
        assert found is not None, "refused before it was found"
        if found.error is None or model.why is Why.BY_NAME:
            return
        if model.why not in PATIENT:
            self._note_load(found)
        elif model.record is not None and not found.exists:
            # Else nobody would see that it is missing.
            self.unrestored.add(model.name)
            self.refusals[model.name] = reason_of(found.error.code, found.error.message)
        elif found.exists and not isinstance(found.error, NotUnique):
            self._digests[model.name] = found.digest
            self._failed.add(model.name)

    def on_unload(self, model: DesiredModel) -> None:
        """The unload has begun."""
        self._forget(model.name)
        if model.why is Why.UNLOADED:
            self.requested.discard(model.name)
            self._end_awaiting(model.name)

    def end(self, model: DesiredModel, error: NereidError | None = None) -> None:
        """Nothing more is to be done for it. error: why it could not be as desired."""
        if model.ended:
            return
        model.ended = True
        if model.why is not Why.MOVED:
            queue = self._queues[model.name]
            queue.remove(model)
            if not queue:
                del self._queues[model.name]
            if model.why in PATIENT:
                self._end_awaiting(model.name)
            self._composing.pop(model, None)
            self._set_due(model.name, *(each.name for each in self._composing))
        if model.on_end is not None:
            model.on_end(error)

    # ---- views

    def is_busy(self, name: str) -> bool:
        """Whether something is being done with a model, or is to be done."""
        return name in self._queues

    def has_changed(self, found: FoundModel) -> bool:
        """Whether a model is not as it was when it was last loaded or refused."""
        return self._digests.get(found.name) != found.digest

    def has_failed(self, name: str) -> bool:
        """Whether a model's last load failed."""
        return name in self._failed

    def pending_steps(self, name: str) -> list[str]:
        """The models that are loaded for an ensemble's steps, which a client loads."""
        return [
            step.name
            for each in self._composing
            if each.name == name and each.why is Why.BY_NAME
            for step in each.needs or ()
        ]

    def take_awaited_changed(self) -> bool:
        """Whether models are not awaited any more since the last call."""
        changed, self._awaited_changed = self._awaited_changed, False
        return changed

    # ---- inside

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

    def _note_load(self, found: FoundModel) -> None:
        self._digests[found.name] = found.digest
        self._failed.add(found.name)
        self._note_refusal(found)

    def _note_refusal(self, found: FoundModel) -> None:
        """Have the index give the reason why a model without versions cannot be loaded, if so."""
        self.refusals.pop(found.name, None)
        if found.error is None:
            self.unrestored.discard(found.name)
        elif found.digest:
            # Names that are in no repository come from clients.
            self.refusals[found.name] = reason_of(found.error.code, found.error.message)

    def _forget(self, name: str) -> None:
        """How a model was loaded last."""
        self._digests.pop(name, None)
        self._failed.discard(name)
        self.refusals.pop(name, None)
        self.unrestored.discard(name)

    def _end_awaiting(self, name: str) -> None:
        if self.awaited.pop(name, None) is not None:
            self._awaited_changed = True
            self._on_due()
        for each in self._queues.get(name, ()):
            if each.searching:
                # The search goes on, but its result is ignored.
                each.superseded, each.busy = True, False
                self._set_due(name)
