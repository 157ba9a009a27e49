"""Conditions of an ensemble's steps.

Parameters switch this extension of Nereid's on:

    parameters { key: "condition.translate" value { string_value: "IS_FOREIGN" } }
    parameters { key: "condition.rerank" value { string_value: "SCORE >= 0.5" } }

A step has the name of its model. If several steps run the same model, `MODEL#1` is the first.
A condition is `TENSOR` or `not TENSOR` of a BOOL tensor, or compares a tensor of numbers.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.pb.model_config_pb2 import ModelConfig

CONDITION: Final = "condition."
_FORM: Final = re.compile(
    r"(?P<negated>not\s+)?(?P<tensor>[^\s=!<>]+)"
    r"(?:\s*(?P<operator>==|!=|<=|>=|<|>)\s*(?P<number>[^\s=!<>]+))?"
)


class Condition(NamedTuple):
    """Comparison of a tensor's value with a number. of_bool: the tensor is BOOL, of 0 or 1."""

    tensor: str
    operator: str
    number: float
    of_bool: bool

    def holds(self, value: float) -> bool:
        """Return whether a value of the tensor fulfils the condition."""
        return compare(value, self.operator, self.number)

    def __str__(self) -> str:
        """Return the condition as an author would write it."""
        if self.of_bool:
            return self.tensor if self.number else f"not {self.tensor}"
        return f"{self.tensor} {self.operator} {self.number}"


def compare(value: float, operator: str, number: float) -> bool:
    """Return whether a comparison with one of the six operators is true."""
    if operator == "==":
        return value == number
    if operator == "!=":
        return value != number
    if operator == "<":
        return value < number
    if operator == "<=":
        return value <= number
    if operator == ">":
        return value > number
    return value >= number


def step_names(config: ModelConfig) -> list[str]:
    """Return the names by which parameters mean the steps."""
    models = [step.model_name for step in config.ensemble_scheduling.step]
    total, seen = Counter(models), Counter[str]()
    names = []
    for model in models:
        seen[model] += 1
        names.append(model if total[model] == 1 else f"{model}#{seen[model]}")
    return names


def read_conditions(config: ModelConfig) -> dict[int, Condition]:
    """Return the conditions by the index of their step; may raise InvalidArgument.

    All conditions of one tensor take it either as BOOL or as numbers.
    """
    if not config.HasField("ensemble_scheduling"):
        return {}
    names = step_names(config)
    conditions: dict[int, Condition] = {}
    kinds: dict[str, bool] = {}
    for name, text in _texts(config):
        if name not in names:
            raise InvalidArgument(
                f"parameter '{CONDITION}{name}' of model '{config.name}': no step has this name;"
                f" the steps are {', '.join(names)}"
            )
        try:
            condition = conditions[names.index(name)] = _parse_condition(text)
            if kinds.setdefault(condition.tensor, condition.of_bool) != condition.of_bool:
                raise ValueError(
                    f"tensor '{condition.tensor}' is compared with a number by one condition and"
                    " taken as BOOL by another"
                )
        except ValueError as error:
            raise InvalidArgument(
                f"parameter '{CONDITION}{name}' of model '{config.name}': {error}"
            ) from None
    return conditions


def _parse_condition(text: str) -> Condition:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"expected 'TENSOR', 'not TENSOR' or 'TENSOR OPERATOR NUMBER' but got '{text[:64]}'"
        )
    if match["operator"] is None:
        return Condition(match["tensor"], "==", 0 if match["negated"] else 1, of_bool=True)
    if match["negated"]:
        raise ValueError(f"'not' takes no comparison, but got '{text}'")
    return Condition(match["tensor"], match["operator"], _number(match["number"]), of_bool=False)


def _number(text: str) -> float:
    try:
        number = int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise ValueError(f"expected a number but got '{text[:64]}'") from None
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number but got '{text}'")
    return number


def _texts(config: ModelConfig) -> Iterator[tuple[str, str]]:
    for key in sorted(config.parameters):
        if key.startswith(CONDITION):
            yield key.removeprefix(CONDITION), config.parameters[key].string_value
