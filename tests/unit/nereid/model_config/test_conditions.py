"""Parameters for conditions of steps."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import parse_config
from nereid.model_config.conditions import (
    Condition,
    read_conditions,
    step_names,
)
from nereid.pb.model_config_pb2 import ModelConfig

STEPS = (
    "ensemble_scheduling { "
    + " ".join(f'step {{ model_name: "{name}" }}' for name in ("look", "scale", "scale"))
    + " }"
)


def config(more: str = STEPS, **parameters: str) -> ModelConfig:
    made = parse_config(f'name: "e" {more}', model_name="e")
    for key, text in parameters.items():
        made.parameters[key].string_value = text
    return made


@pytest.mark.parametrize(
    ("text", "expected", "holds", "fails"),
    [
        ("C", Condition("C", "==", 1, of_bool=True), 1, 0),
        (" not  C ", Condition("C", "==", 0, of_bool=True), False, True),
        ("C == 1", Condition("C", "==", 1, of_bool=False), 1.0, 2),
        ("C!=1", Condition("C", "!=", 1, of_bool=False), 2, 1),
        ("C >= .5", Condition("C", ">=", 0.5, of_bool=False), 0.5, 0.25),
        ("C > -1e3", Condition("C", ">", -1000.0, of_bool=False), 0, -1000),
        (
            "C <= 18446744073709551615",
            Condition("C", "<=", 2**64 - 1, of_bool=False),
            2**64 - 1,
            1e20,
        ),
        ("C<2", Condition("C", "<", 2, of_bool=False), 1, 2),
        ("not", Condition("not", "==", 1, of_bool=True), 1, 0),
    ],
)
def test_a_condition(text: str, expected: Condition, holds: float, fails: float) -> None:
    read = read_conditions(config(**{"condition.look": text}))
    assert read == {0: expected}
    assert read[0].holds(holds)
    assert not read[0].holds(fails)
    # The text form means the same.
    assert read_conditions(config(**{"condition.look": str(expected)})) == read


@pytest.mark.parametrize(
    "text",
    [
        "",
        "C D",
        "C ==",
        "== 1",
        "C = 1",
        "C == 1 2",
        "C => 1",
        "C == D",
        "C == nan",
        "C < 1e999",
        "not C == 1",
        "C == 0x1",
        "not not C",
        "C == " + "9" * 5000,
    ],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"parameter 'condition\.look' of model 'e': "):
        read_conditions(config(**{"condition.look": text}))


def test_a_step_has_its_models_name_and_a_number_if_others_run_the_model() -> None:
    assert step_names(config()) == ["look", "scale#1", "scale#2"]
    assert list(read_conditions(config(**{"condition.scale#2": "C"}))) == [2]
    with pytest.raises(InvalidArgument, match="no step has this name; the steps are look, scale#1"):
        read_conditions(config(**{"condition.scale": "C"}))


def test_a_tensor_is_either_bool_or_a_number() -> None:
    both = {"condition.look": "C", "condition.scale#1": "C > 1"}
    with pytest.raises(InvalidArgument, match="compared with a number by one condition"):
        read_conditions(config(**both))


def test_only_ensembles_have_conditions() -> None:
    assert read_conditions(config("", **{"condition.look": "what its code reads"})) == {}
