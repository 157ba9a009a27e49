"""The order in which models come into service, and circles among them."""

from __future__ import annotations

import pytest

from nereid.pb import model_config_pb2
from nereid.services.scheduler.models.dependencies import (
    cycle_error,
    in_load_order,
    is_ensemble,
    refuse_cycles,
    step_models,
)
from nereid.services.scheduler.repository.found_model import FoundModel


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


def test_what_an_ensemble_consists_of() -> None:
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
def test_order(text: str, order: str) -> None:
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
def test_circles(text: str, errors: dict[str, str]) -> None:
    told = {each.name: each.error for each in refuse_cycles(models(text))}
    for name, error_status in errors.items():
        error = told[name]
        assert error is not None
        assert error.message == f"circular dependency between ensembles: {error_status}"
    circled = {name for name, error in told.items() if error is not None}
    assert circled >= set(errors)
    assert "d" not in circled


def test_a_circle_through_models_in_service() -> None:
    served = {"b": ["c"], "c": ["a"]}
    assert "b -> ... -> a -> b" in cycle_error("b", lambda name: served.get(name, ["b"]))
    assert cycle_error("b", lambda name: served.get(name, [])) == ""
