"""Finds the arguments and results of a TorchScript module by Triton's rules, without torch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

_INDEXED: Final = re.compile(r".*__(\d+)", re.DOTALL)


def arguments_of(model: str, names: Sequence[str], arguments: Sequence[str]) -> dict[str, str]:
    """Map each input's name to its argument.

    If every input has the name of an argument, the names decide. Otherwise, if every name ends in
    two underscores and a number (INPUT__0), the numbers decide. Otherwise the order decides. Raises
    InvalidArgument if there are too many inputs, or two inputs refer to one argument.
    """
    if set(names) <= set(arguments):
        return {name: name for name in names}
    chosen: dict[str, str] = {}
    for name, index in _indices(names).items():
        if index >= len(arguments):
            raise InvalidArgument(
                f"unable to load model '{model}', input '{name}' is number {index} of a model that "
                f"takes {len(arguments)}"
            )
        chosen[name] = arguments[index]
    _check_distinct(model, "input", chosen)
    return chosen


def results_of(model: str, names: Sequence[str]) -> dict[str, int]:
    """Map each output to its index: the number at the end of its name, or else its position.

    Raises InvalidArgument if two outputs refer to one result.
    """
    chosen = _indices(names)
    _check_distinct(model, "output", chosen)
    return chosen


def _indices(names: Sequence[str]) -> dict[str, int]:
    matches = [_INDEXED.fullmatch(name) for name in names]
    return {
        name: int(match[1]) if match and all(matches) else order
        for order, (name, match) in enumerate(zip(names, matches, strict=True))
    }


def _check_distinct(model: str, role: str, chosen: dict[str, str] | dict[str, int]) -> None:
    if len(set(chosen.values())) < len(chosen):
        raise InvalidArgument(
            f"unable to load model '{model}', the {role}s {', '.join(sorted(chosen))} do not "
            "stand for different ones of the model"
        )
