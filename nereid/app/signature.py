"""Inputs and outputs of a function, from its annotations or as they are given."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from nereid.app.tensor import EXAMPLE, Tensor, tensor_of

if TYPE_CHECKING:
    from collections.abc import Callable

ONLY_OUTPUT: Final = "output"
_STREAMS: Final = frozenset(
    {AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator}
)
_KINDS: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Signature(NamedTuple):
    """Inputs and outputs by name."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


def signature_of(
    function: Callable[..., Any],
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    *,
    is_method: bool = False,
) -> Signature:
    """Return a function's inputs and outputs; raise TypeError that says what to write."""
    where = function.__qualname__
    parameters = list(inspect.signature(function).parameters.values())[is_method:]
    if inputs is not None and outputs is not None:
        hints: dict[str, Any] = {}
    else:
        hints = _hints(function, where)
    found = (
        _input_types(parameters, hints, where)
        if inputs is None
        else _given(inputs, f"{where}: input")
    )
    _check_parameters(parameters, found, where)
    found = {
        name: tensor.as_optional() if _has_default(parameters, name) else tensor
        for name, tensor in found.items()
    }
    if not found:
        raise TypeError(f"{where}: a model needs an input: write {where}(x: {EXAMPLE})")
    if outputs is not None:
        return Signature(found, _given(outputs, f"{where}: output"))
    if hints.get("return") is None:
        raise TypeError(
            f"{where}: say what it returns: write `-> {EXAMPLE}`, or give"
            f" outputs={{'{ONLY_OUTPUT}': nereid.Tensor(\"float32\", -1)}}"
        )
    return Signature(found, _output_types(hints["return"], where))


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{where}: its annotations name '{error.name}', which its module does not have: define"
            " it there, or give inputs= and outputs="
        ) from error


def _input_types(
    parameters: list[inspect.Parameter], hints: dict[str, Any], where: str
) -> dict[str, Tensor]:
    found = {}
    for parameter in parameters:
        name = parameter.name
        if parameter.kind not in _KINDS:
            raise TypeError(f"{where}: '{parameter}' names no input: give inputs=")
        if name not in hints:
            raise TypeError(f"{where}: annotate '{name}': write {name}: {EXAMPLE}")
        found[name] = _tensor(hints[name], f"{where}: '{name}'")
    return found


def _output_types(annotation: Any, where: str) -> dict[str, Tensor]:
    if get_origin(annotation) in _STREAMS:
        annotation = get_args(annotation)[0]
    has_fields = isinstance(annotation, type) and (
        is_dataclass(annotation) or issubclass(annotation, tuple | dict)
    )
    fields = get_type_hints(annotation, include_extras=True) if has_fields else {}
    if fields:
        return {name: _tensor(hint, f"{where}: output '{name}'") for name, hint in fields.items()}
    if get_origin(annotation) in (dict, tuple) or has_fields:
        raise TypeError(
            f"{where}: {annotation} does not name its outputs: return a NamedTuple, or give"
            " outputs={'name': nereid.Tensor(...)}"
        )
    return {ONLY_OUTPUT: _tensor(annotation, f"{where}: what it returns")}


def _given(tensors: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    if not isinstance(tensors, Mapping) or not tensors:
        raise TypeError(f"{where}s: write a dict of names, {{'x': nereid.Tensor(\"float32\", -1)}}")
    return {name: _tensor(tensor, f"{where} '{name}'") for name, tensor in tensors.items()}


def _tensor(annotation: Any, where: str) -> Tensor:
    try:
        return tensor_of(annotation)
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from None


def _check_parameters(
    parameters: list[inspect.Parameter], inputs: Mapping[str, Tensor], where: str
) -> None:
    """Raise TypeError if the function cannot be called with these inputs by keyword."""
    names = {parameter.name for parameter in parameters if parameter.kind in _KINDS}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if missing := [] if takes_all else [name for name in inputs if name not in names]:
        raise TypeError(f"{where}: it has no parameter '{missing[0]}', which inputs= names")
    for parameter in parameters:
        needed = (
            parameter.kind is not parameter.VAR_KEYWORD and parameter.default is parameter.empty
        )
        if needed and parameter.name not in inputs:
            raise TypeError(f"{where}: its parameter '{parameter.name}' is missing in inputs=")


def _has_default(parameters: list[inspect.Parameter], name: str) -> bool:
    return any(
        parameter.name == name and parameter.default is not parameter.empty
        for parameter in parameters
    )
