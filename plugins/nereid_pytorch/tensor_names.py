"""Finds the arguments and results of a module by Triton's rules, without torch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

_INDEXED: Final = re.compile(r".*__(\d+)", re.DOTALL)


class Argument(NamedTuple):
    """One argument of a module."""

    name: str
    is_dictionary: bool = False
    is_required: bool = True


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


def results_of(model: str, names: Sequence[str], results: Sequence[str] = ()) -> dict[str, int]:
    """Map each output to the index of its result: by name, its name's number, or its position.

    results: names of the results, if the model's file states some. Raises InvalidArgument if two
    outputs refer to one result.
    """
    if results and set(names) <= set(results):
        return {name: results.index(name) for name in names}
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


def leaf_names(prefix: str, tree: object) -> list[str]:
    """Return the names of a tree's leaves, in order: RESULT[key][0] for RESULT."""
    if isinstance(tree, dict):
        children = [(f"{prefix}[{key}]", child) for key, child in tree.items()]
    elif isinstance(tree, (list, tuple)):
        children = [(f"{prefix}[{index}]", child) for index, child in enumerate(tree)]
    else:
        return [prefix]
    return [leaf for name, child in children for leaf in leaf_names(name, child)]
