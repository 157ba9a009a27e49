"""Environment variables in strings of configurations."""

import pytest

from nereid.core.variables import MAX_VALUE, Variables, wants_variables

VARIABLES = Variables(("MODEL_*", "HOME"), {"MODEL_A": "a", "MODEL_E": "", "SECRET": "s"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("${MODEL_A}", "a"),
        ("x${MODEL_A}y${MODEL_A}", "xaya"),
        ("${MODEL_B:-b}", "b"),
        ("${MODEL_B:-}", ""),
        ("${MODEL_A:-b}", "a"),
        # Set, though empty.
        ("${MODEL_E:-b}", ""),
        ("${MODEL_B:-$x:-y}", "$x:-y"),
        ("$${MODEL_A} $MODEL_A $", "${MODEL_A} $MODEL_A $"),
    ],
)
def test_variables_are_replaced(text: str, expected: str) -> None:
    assert VARIABLES.expand(text) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("${SECRET}", "--model-config-env does not allow the variable 'SECRET'"),
        ("${SECRET:-x}", "--model-config-env does not allow the variable 'SECRET'"),
        ("${MODEL_B}", "the variable 'MODEL_B' is not set"),
        ("${}", "expected ${NAME} or ${NAME:-default} but got '${}'"),
        ("${MODEL-A}", "expected ${NAME} or ${NAME:-default} but got '${MODEL-A}'"),
        ("${MODEL_A", "expected ${NAME} or ${NAME:-default} but got '${'"),
        ("${HOME:-" + "x" * MAX_VALUE + "}" * 2, "has more than 65536 characters"),
    ],
)
def test_what_is_no_allowed_variable_is_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError) as caught:
        VARIABLES.expand(text)
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("text", "wants"),
    [
        ("# nereid: variables", True),
        ("# nereid: variables\r\nname: 'm'", True),
        ("name: 'm'\n# nereid: variables", False),
        ("# nereid: variables are not wanted", False),
        ("", False),
    ],
)
def test_only_the_first_line_asks_for_variables(text: str, *, wants: bool) -> None:
    assert wants_variables(text) is wants
