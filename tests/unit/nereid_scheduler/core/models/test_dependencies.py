"""The order in which models are loaded, and cycles among them."""

import pytest

from nereid.pb import model_config_pb2
from nereid_scheduler.core.models.dependencies import (
    cycle_error,
    is_ensemble,
    resolve_steps,
    step_models,
)
from nereid_scheduler.core.models.found_model import FoundModel
from nereid_scheduler.core.models.load_order import in_load_order, refuse_cycles


def found(name: str, steps: str = "") -> FoundModel:
    draft = model_config_pb2.ModelConfig(name=name)
    if steps:
        draft.platform = "ensemble"
    for step in steps.split():
        draft.ensemble_scheduling.step.add(model_name=step)
    return FoundModel(name, draft=draft)


def models(text: str) -> list[FoundModel]:
    """As 'a:b,c b c': a consists of b and c."""
    parts = (part.partition(":") for part in text.split())
    return [found(name, steps.replace(",", " ")) for name, _, steps in parts]


def test_the_models_of_an_ensembles_steps() -> None:
    ensemble, plain = found("e", "a b a"), found("m")
    assert (is_ensemble(ensemble.draft), is_ensemble(plain.draft)) == (True, False)
    assert (step_models(ensemble.draft), step_models(plain.draft)) == (["a", "b"], [])


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("", ""),
        ("a:b b", "b a"),
        ("a:b,c b:c c d", "c d b a"),
        ("a:elsewhere b", "a b"),
        ("a:b b:a c", "c a b"),
        ("a:a", "a"),
    ],
)
def test_ensembles_are_loaded_after_their_models(text: str, order: str) -> None:
    assert [each.name for each in in_load_order(models(text))] == order.split()


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("a:b b", {}),
        ("a:a", {"a": "a -> ... -> a -> a"}),
        ("a:b b:a c:a", {"a": "a -> ... -> b -> a", "b": "b -> ... -> a -> b"}),
        ("a:b,d b:c,d c:a d", {"a": "a -> ... -> c -> a", "b": "b -> ... -> a -> b"}),
    ],
)
def test_an_ensemble_that_contains_itself_is_refused(text: str, errors: dict[str, str]) -> None:
    checked_errors = {each.name: each.error for each in refuse_cycles(models(text))}
    for name, cycle in errors.items():
        error = checked_errors[name]
        assert error is not None
        assert error.message == f"circular dependency between ensembles: {cycle}"
    circular = {name for name, error in checked_errors.items() if error is not None}
    assert circular >= set(errors)
    assert "d" not in circular


def test_a_cycle_through_models_in_service() -> None:
    served = {"b": ["c"], "c": ["a"]}
    assert "b -> ... -> a -> b" in cycle_error("b", lambda name: served.get(name, ["b"]))
    assert cycle_error("b", lambda name: served.get(name, [])) == ""


def test_a_step_is_resolved_in_its_own_namespace_first() -> None:
    draft = model_config_pb2.ModelConfig()
    for name in ("own", "other", "both", "none"):
        draft.ensemble_scheduling.step.add(model_name=name, model_namespace="written")
    having = {"own": ["a", "b"], "other": ["b"], "both": ["b", "c"]}
    resolve_steps(draft, "a", having)
    steps = draft.ensemble_scheduling.step
    assert [step.model_namespace for step in steps] == ["a", "b", "", ""]
    assert step_models(draft) == ["a::own", "b::other", "both", "none"]
    resolve_steps(draft, "", {})
    assert step_models(draft) == ["own", "other", "both", "none"]
