"""What is done next for a model, played by hand: what is desired, what is served, what follows."""

from __future__ import annotations

import pytest

from nereid.core.errors import Internal, InvalidArgument, NereidError
from nereid_scheduler.control.reconciler.next_action import (
    Action,
    Decision,
    is_unload_remembered,
    next_action,
)
from nereid_scheduler.core.models.desired_models import DesiredModel, DesiredModels, Reason
from nereid_scheduler.core.models.found_model import FoundModel, NoVersion
from nereid_scheduler.core.models.model_record import ModelRecord
from nereid_scheduler.core.models.overrides import Override
from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion
from tests.support.scheduler.world import found, serve


def missing(name: str) -> FoundModel:
    return FoundModel(name, error=Internal("there is no such model"))


class World:
    def __init__(self) -> None:
        self.desired = DesiredModels()
        self.catalogue = Catalogue(desired=self.desired)

    def serve(self, model: FoundModel, *, ready: bool = True) -> ServedVersion:
        state = "ready" if ready else "loading"
        return serve(self.catalogue, model.name, state=state, draft=model.draft)

    def next(self, model: DesiredModel) -> Decision:
        return next_action(model, self.desired, self.catalogue)

    def due(self) -> list[tuple[str, Action]]:
        """Of all models whose next action may have changed."""
        return [(each.name, self.next(each).action) for each in self.desired.take_due()]

    def load(self, model: DesiredModel, *, failed: bool = False) -> None:
        assert self.next(model).action is Action.LOAD
        self.desired.on_load_begun(model)
        assert model.found is not None
        self.serve(model.found)
        self.desired.last_loads.end(model.name, failed=failed, retried=False)
        self.desired.end(model)

    def compose(self, model: DesiredModel) -> dict[str, DesiredModel]:
        """Have the models of an ensemble's steps loaded first, which can be found."""
        decision = self.next(model)
        assert decision.action is Action.ADD_STEPS
        return {each.name: each for each in self.desired.add_steps(model, decision.steps)}


def test_a_client_loads_a_model_and_loads_it_again_when_it_has_changed() -> None:
    it = World()
    model = it.desired.add("m", Reason.BY_NAME)
    assert it.next(model) == Decision(Action.FIND, names=("m",))
    it.desired.on_found(model, [found("m")])
    it.load(model)
    again = it.desired.add("m", Reason.BY_NAME)
    it.desired.on_found(again, [found("m")])
    assert it.next(again).action is Action.KEEP
    overridden = it.desired.add("m", Reason.BY_NAME, override=Override("{}"))
    it.desired.on_found(overridden, [found("m")])
    assert it.next(overridden).action is Action.LOAD
    it.load(overridden, failed=True)
    # What failed is tried again without a change.
    assert it.next(again).action is Action.LOAD


def test_a_model_that_is_not_ready_is_loaded_again() -> None:
    it = World()
    model = it.desired.add("m", Reason.BY_NAME, found("m"))
    it.load(model)
    it.serve(found("m"), ready=False)
    assert it.next(it.desired.add("m", Reason.BY_NAME, found("m"))).action is Action.LOAD


@pytest.mark.parametrize(
    ("reason", "error", "text"),
    [
        (Reason.BY_NAME, NoVersion("no version", ()), "load failed for model 'm': no version\n"),
        (
            Reason.BY_NAME,
            Internal("bad"),
            "failed to load 'm', failed to poll from model repository: bad",
        ),
        (Reason.INITIAL, Internal("bad"), "bad"),
        (Reason.STEP, Internal("bad"), "bad"),
    ],
)
def test_a_model_that_cannot_be_read_is_refused(
    reason: Reason, error: NereidError, text: str
) -> None:
    it = World()
    decision = it.next(it.desired.add("m", reason, found("m", error=error)))
    assert decision.action is Action.REFUSE
    assert decision.error is not None
    assert decision.error.message == text


@pytest.mark.parametrize("reason", [Reason.STEP, Reason.ON_DEMAND])
def test_what_is_served_already_is_kept(reason: Reason) -> None:
    it = World()
    model = it.desired.add("m", reason, found("m"))
    assert it.next(model).action is Action.LOAD
    it.serve(found("m"), ready=False)
    assert it.next(model).action is Action.KEEP


def test_a_step_that_does_not_exist_is_its_ensembles_error() -> None:
    it = World()
    assert it.next(it.desired.add("m", Reason.STEP, missing("m"))).action is Action.KEEP


def test_unloads_and_moves() -> None:
    it = World()
    actions = {
        reason: it.next(it.desired.add("m", reason)).action
        for reason in (Reason.UNLOADED, Reason.RELEASED, Reason.MOVED)
    }
    assert actions == {
        Reason.UNLOADED: Action.UNLOAD,
        Reason.RELEASED: Action.UNLOAD,
        Reason.MOVED: Action.HAND_OVER,
    }


def test_a_model_that_is_taken_over_is_loaded_as_its_record_says() -> None:
    it = World()
    model = it.desired.add("m", Reason.TAKEN_OVER, awaited_as="m")
    assert it.next(model).action is Action.FIND_RECORDED
    it.desired.on_record(model, found("m"), ModelRecord("m", loaded=True, files={"f": "digest"}))
    assert it.next(model).action is Action.READ_FILES
    it.desired.on_found(model, [found("m")])
    assert it.next(model).action is Action.LOAD
    it.serve(found("m"))
    assert it.next(model).action is Action.KEEP


def test_a_model_that_is_not_to_be_taken_over_is_left() -> None:
    it = World()
    model = it.desired.add("m", Reason.TAKEN_OVER, awaited_as="m")
    it.desired.on_record(model, None, None)
    assert it.next(model).action is Action.KEEP
    it.desired.end(model)
    assert not it.desired.awaited


# ---- ensembles


def test_the_models_of_an_ensembles_steps_are_found_and_loaded_before_it() -> None:
    it = World()
    it.serve(found("served"))
    outer = it.desired.add("outer", Reason.BY_NAME)
    it.desired.on_found(outer, [found("outer", "inner", "served", "nowhere")])
    assert it.next(outer) == Decision(Action.FIND, names=("inner", "nowhere"))
    it.desired.on_found(outer, [found("inner", "leaf", "served"), missing("nowhere")])
    assert it.next(outer) == Decision(Action.FIND, names=("leaf",))
    it.desired.on_found(outer, [found("leaf")])
    steps = it.compose(outer)
    assert [*steps] == ["nowhere", "leaf", "inner"]
    due = {"nowhere": Action.KEEP, "leaf": Action.LOAD, "inner": Action.WAIT, "outer": Action.WAIT}
    assert dict(it.due()) == due
    it.desired.end(steps["nowhere"])
    it.load(steps["leaf"])
    assert dict(it.due()) == {"inner": Action.LOAD, "outer": Action.WAIT}
    it.load(steps["inner"])
    assert it.due() == [("outer", Action.LOAD)]
    it.load(outer)
    assert it.due() == []


def test_an_ensemble_of_served_models_is_loaded_at_once() -> None:
    it = World()
    it.serve(found("a"))
    model = it.desired.add("e", Reason.BY_NAME, found("e", "a"))
    assert it.compose(model) == {}
    it.load(model)


@pytest.mark.parametrize("served", [False, True])
def test_an_ensemble_that_contains_itself_is_refused(served: bool) -> None:
    it = World()
    model = it.desired.add("e", Reason.BY_NAME, found("e", "i"))
    if served:
        it.serve(found("i", "e"))
    else:
        it.desired.on_found(model, [found("i", "e")])
    decision = it.next(model)
    assert decision.action is Action.REFUSE
    assert isinstance(decision.error, InvalidArgument)
    assert decision.error.message == (
        "load failed for model 'e': circular dependency between ensembles: e -> ... -> i -> e\n"
    )


def test_loads_that_would_wait_for_each_other_are_refused() -> None:
    it = World()
    one = it.desired.add("one", Reason.BY_NAME, found("one", "two"), override=Override("{}"))
    two = it.desired.add("two", Reason.BY_NAME, found("two", "one"), override=Override("{}"))
    it.desired.on_found(one, [found("two")])
    it.compose(one)
    it.desired.on_found(two, [found("one")])
    decision = it.next(two)
    assert decision.action is Action.REFUSE
    assert decision.error is not None
    assert (
        "circular dependency between ensembles: two -> ... -> one -> two" in decision.error.message
    )
    it.desired.end(two)
    (step,) = one.needs or ()
    it.load(step)
    it.load(one)


def test_a_cycle_among_the_steps_alone_waits_for_nothing_for_ever() -> None:
    it = World()
    model = it.desired.add("e", Reason.BY_NAME, found("e", "a"))
    it.desired.on_found(model, [found("a", "b"), found("b", "a")])
    steps = it.compose(model)
    for name in ("a", "b"):
        it.load(steps[name])
    it.load(model)


# ---- records of unloads


@pytest.mark.parametrize(
    ("initial", "brought", "remembered"),
    [
        (("m",), True, True),
        (("*",), True, True),
        ((), True, False),
        ((), False, True),
    ],
)
def test_an_unload_is_remembered_if_a_start_may_load_the_model(
    initial: tuple[str, ...], brought: bool, remembered: bool
) -> None:
    it = World()
    it.serve(found("m"))
    got = is_unload_remembered("m", it.desired, it.catalogue, initial, brought=brought)
    assert got is remembered


def test_an_unload_of_a_model_that_others_need_is_remembered() -> None:
    it = World()

    def remembered(name: str) -> bool:
        return is_unload_remembered(name, it.desired, it.catalogue, (), brought=True)

    assert not is_unload_remembered("unknown", it.desired, it.catalogue, ("*",), brought=False)
    it.desired.add("awaited", Reason.TAKEN_OVER, awaited_as="awaited")
    assert not remembered("awaited")
    assert is_unload_remembered("awaited", it.desired, it.catalogue, (), brought=False)
    it.serve(found("e", "step"))
    assert remembered("step")
    it.desired.on_demand.defer(found("lazy"))
    assert remembered("lazy")
