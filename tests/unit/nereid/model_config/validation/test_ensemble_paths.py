"""The proof that an ensemble with conditions has one source of each output on every path."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import complete_config, freeze_config, parse_config
from nereid.model_config.validation.ensemble_paths import MAX_PATHS
from tests.support.scheduler.ensemble_configs import Step, ensemble_config


def step(model: str, reads: str, makes: str) -> Step:
    return (
        model,
        {f"t{number}": name for number, name in enumerate(reads.split())},
        {f"t{number}": name for number, name in enumerate(makes.split())},
    )


def check(*steps: Step, inputs: str = "x", outputs: str = "y", **parameters: str) -> str:
    """Return the error, or nothing. parameters: conditions by a step's model, and `default_X`."""
    more = ""
    for key, text in parameters.items():
        kind, _, name = key.rpartition("_")
        full = f"{kind or 'condition'}.{name}"
        more += f"parameters {{ key: '{full}' value {{ string_value: '{text}' }} }}\n"
    text = ensemble_config(inputs.split(","), outputs.split(","), steps, more)
    try:
        config = parse_config(text, model_name="e")
        freeze_config(complete_config(config, model_name="e", description=None))
    except InvalidArgument as error:
        return error.message
    return ""


LOOK = step("look", "x", "c")
ONE, OTHER = step("one", "x", "y"), step("other", "x", "y")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("c", "not c"),
        ("c >= 0.5", "c < 0.5"),
        ("c == 1", "c != 1"),
        ("c <= -1", "c > -1"),
    ],
)
def test_steps_whose_conditions_are_complements_may_make_one_tensor(one: str, other: str) -> None:
    assert not check(LOOK, ONE, OTHER, one=one, other=other)


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        ("c > 1", "c < 1", "'c' == 1"),
        ("c == 0", "c == 1", "'c' < 0"),
        ("c <= 0", "c >= 1", "0 < 'c' < 1"),
        ("c < 5", "c == 5", "5 < 'c'"),
    ],
)
def test_an_output_needs_a_source_on_every_path(one: str, other: str, path: str) -> None:
    error = check(LOOK, ONE, OTHER, one=one, other=other)
    assert error == f"output 'y' of ensemble 'e' has no source if {path}"


@pytest.mark.parametrize(("condition", "value"), [("c", "false"), ("not c", "true")])
def test_a_single_step_with_a_condition_is_no_source(condition: str, value: str) -> None:
    error = check(LOOK, ONE, one=condition)
    assert error == f"output 'y' of ensemble 'e' has no source if 'c' is {value}"


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        ("c", "c", "'c' is true"),
        ("c >= 1", "c <= 1", "'c' == 1"),
        ("c != 1", "c < 5", "'c' < 1"),
        ("c > 1", "c > 2", "2 < 'c'"),
    ],
)
def test_two_steps_must_not_make_one_tensor_on_one_path(one: str, other: str, path: str) -> None:
    error = check(LOOK, ONE, OTHER, one=one, other=other)
    assert error == f"steps 'one' and 'other' of ensemble 'e' both make tensor 'y' if {path}"


def test_a_tensor_of_a_step_without_a_condition_has_no_other_source() -> None:
    expected = "ensemble tensor 'y' can appear in an output map only once for ensemble 'e' step 2"
    assert check(LOOK, ONE, OTHER, one="c") == expected
    assert check(LOOK, ONE, OTHER, other="c") == expected
    expected = expected.replace("step 2", "step 1")
    assert check(LOOK, step("one", "x", "y y"), one="c") == expected


def test_a_default_is_a_source() -> None:
    assert not check(LOOK, ONE, one="c", default_y="0")
    # It also serves the step behind.
    behind = step("behind", "m x", "y")
    assert not check(LOOK, step("one", "x", "m"), behind, one="c", default_m="0")
    error = check(LOOK, step("one", "x", "m"), behind, one="c")
    assert error == "output 'y' of ensemble 'e' has no source if 'c' is false"


def test_a_default_that_is_never_used_is_refused() -> None:
    refused = "parameter 'default.{}' of ensemble 'e' is not used"
    assert check(ONE, default_y="0").startswith(refused.format("y"))
    for name in ("nothing", "x", "c"):
        error = check(LOOK, ONE, one="c", default_y="0", **{f"default_{name}": "0"})
        assert error.startswith(refused.format(name))


def test_a_condition_may_depend_on_what_another_one_decides() -> None:
    steps = LOOK, step("more", "x", "d"), ONE, OTHER
    conditions = {"more": "c", "one": "d > 0.5", "other": "d <= 0.5"}
    error = check(*steps, **conditions)
    assert error == "output 'y' of ensemble 'e' has no source if 'c' is false"
    # The default of d decides as well: `other` runs.
    assert not check(*steps, **conditions, default_d="0.5")
    error = check(*steps[:3], more="c", one="d > 0.5", default_d="0.75")
    assert error == "output 'y' of ensemble 'e' has no source if 'c' is true and 'd' < 0.5"
    error = check(*steps, **conditions, default_d="[0.5]")
    assert error.endswith("must be a single number or boolean, since a condition reads it")
    # A BOOL has a default of its own kind.
    bools = {"more": "c", "one": "d", "other": "not d"}
    assert not check(*steps, **bools, default_d="true")


def test_an_input_may_decide() -> None:
    optional = "x,c BOOL 1 optional"
    assert not check(ONE, OTHER, inputs="x,c BOOL 1", one="c", other="not c")
    error = check(ONE, OTHER, inputs=optional, one="c", other="not c")
    assert error == (
        "parameter 'condition.one' of ensemble 'e' needs the optional input 'c', which has no"
        " parameter 'default.c'"
    )
    assert not check(ONE, OTHER, inputs=optional, one="c", other="not c", default_c="true")


def test_a_condition_needs_a_tensor_of_the_ensemble() -> None:
    error = check(ONE, one="c", default_y="0")
    assert error.startswith("output 'y' for ensemble 'e' is not written")


def test_steps_that_wait_for_each_other_are_refused() -> None:
    error = check(step("one", "x", "c"), step("other", "x c", "y"), one="y", default_y="0")
    assert "is not written" in error
    error = check(LOOK, step("one", "x", "y x"), one="c", default_y="0")
    assert error.startswith("step 'one' of ensemble 'e' makes the input 'x'")


def test_the_number_of_paths_is_bounded() -> None:
    count = MAX_PATHS.bit_length()
    steps = [step(f"m{number}", "x", f"c{number}") for number in range(count)]
    steps += [step(f"n{number}", "x", f"d{number}") for number in range(count)]
    conditions = {f"n{number}": f"c{number}" for number in range(count)}
    outputs = ",".join(f"d{number}" for number in range(count))
    error = check(*steps, outputs=outputs, **conditions)
    assert error == f"the conditions of ensemble 'e' make more than {MAX_PATHS} paths"
