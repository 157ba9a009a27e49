"""In whatever order models are asked for, and actions are carried out: each generation ends, of one
model one action is carried out at a time, and nothing is awaited for ever.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from nereid.core.errors import Internal
from nereid_scheduler.control.reconciler.next_action import FINDING, Action, Decision, next_action
from nereid_scheduler.core.models.desired_models import DesiredModel, DesiredModels, Reason
from nereid_scheduler.core.models.found_model import FoundModel
from nereid_scheduler.core.models.model_record import ModelRecord
from nereid_scheduler.core.models.overrides import Override
from nereid_scheduler.placement.models.catalogue import Catalogue
from tests.support.scheduler.world import found, serve

# Ensembles with the models of their steps; the last two contain each other.
STEPS = {"a": "", "b": "", "e": "ab", "f": "ea", "x": "ya", "y": "x"}
FOUND_WITHOUT = {Reason.INITIAL, Reason.POLLED}
REASONS = [
    Reason.INITIAL, Reason.TAKEN_OVER, Reason.BY_NAME, Reason.BY_NAME, Reason.ON_DEMAND,
    Reason.POLLED, Reason.UNLOADED, Reason.RELEASED, Reason.MOVED,
]  # fmt: skip


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.desired = DesiredModels()
        self.catalogue = Catalogue(desired=self.desired)
        self.pending: list[tuple[DesiredModel, Decision]] = []
        self.asked: list[DesiredModel] = []

    def find(self, name: str) -> FoundModel:
        error = Internal("bad") if self.random.random() < 0.1 else None
        return found(name, *STEPS[name], error=error)

    def ask(self) -> None:
        name, reason = self.random.choice([*STEPS]), self.random.choice(REASONS)
        override = (
            Override("{}") if reason is Reason.BY_NAME and self.random.random() < 0.5 else None
        )
        model = self.find(name) if reason in FOUND_WITHOUT else None
        awaited_as = name if reason is Reason.TAKEN_OVER else ""
        added = self.desired.add(name, reason, model, override=override, awaited_as=awaited_as)
        self.asked.append(added)

    def reconcile(self) -> None:
        while due := self.desired.take_due():
            for model in due:
                decision = next_action(model, self.desired, self.catalogue)
                if decision.action is Action.ADD_STEPS:
                    self.asked += self.desired.add_steps(model, decision.steps)
                elif decision.action is Action.HAND_OVER:
                    self.desired.end(model)
                elif decision.action is not Action.WAIT:
                    self.desired.begin(model, finds=decision.action in FINDING)
                    self.pending.append((model, decision))
                    if decision.action is Action.LOAD:
                        self.desired.on_load_begun(model)
        busy = Counter(
            model.name
            for model, decision in self.pending
            if decision.action not in {Action.FIND_RECORDED, Action.READ_FILES}
        )
        assert all(count == 1 for count in busy.values())

    def act(self) -> None:
        """Carry out any of the actions that are pending."""
        model, decision = self.pending.pop(self.random.randrange(len(self.pending)))
        if decision.action is Action.FIND:
            self.desired.on_found(model, [self.find(each) for each in decision.names])
        elif decision.action is Action.FIND_RECORDED:
            record = ModelRecord(model.name, loaded=True, files={"f": "digest"})
            outline = self.find(model.name) if self.random.random() < 0.8 else None
            self.desired.on_record(model, outline, self.random.choice([None, record]))
        elif decision.action is Action.READ_FILES:
            self.desired.on_found(model, [self.find(model.name)])
        else:
            self._finish(model, decision.action)

    def _finish(self, model: DesiredModel, action: Action) -> None:
        if action is Action.LOAD:
            assert model.found is not None
            failed = self.random.random() < 0.2
            state = "failed" if failed else "ready"
            serve(self.catalogue, model.name, state=state, draft=model.found.draft)
            self.desired.last_loads.end(model.name, failed=failed, retried=False)
        elif action is Action.REFUSE:
            self.desired.on_refused(model)
        elif action is Action.UNLOAD:
            self.desired.on_unload(model)
            for each in self.catalogue.running(model.name):
                each.life.begin_unload()
        self.desired.end(model)


@pytest.mark.parametrize("seed", range(200))
def test_each_generation_ends(seed: int) -> None:
    it = World(seed)
    for _ in range(it.random.randrange(1, 40)):
        it.ask()
        if it.random.random() < 0.7:
            it.reconcile()
        while it.pending and it.random.random() < 0.5:
            it.act()
            it.reconcile()
    it.reconcile()
    while it.pending:
        it.act()
        it.reconcile()
    assert [each for each in it.asked if not each.ended] == []
    assert not it.desired.awaited
    assert not any(map(it.desired.is_busy, STEPS))
