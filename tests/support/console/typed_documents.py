"""Comparison of a JSON value with a TypedDict."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints, is_typeddict


def check(value: Any, hint: Any, path: str = "$") -> None:
    """Raises AssertionError, which says where it is not."""
    if hint is Any:
        assert value is not None, path
    elif is_typeddict(hint):
        _check_members(value, hint, path)
    elif get_origin(hint) is dict:
        assert isinstance(value, dict), path
        for name, each in value.items():
            check(each, get_args(hint)[1], f"{path}.{name}")
    elif get_origin(hint) is list:
        assert isinstance(value, list), path
        for index, each in enumerate(value):
            check(each, get_args(hint)[0], f"{path}[{index}]")
    elif hint is float:
        assert type(value) in (int, float), path
    else:
        assert type(value) is hint, f"{path}: {value!r} is no {hint.__name__}"


def _check_members(value: Any, hint: Any, path: str) -> None:
    assert isinstance(value, dict), path
    hints = get_type_hints(hint)
    assert value.keys() <= hints.keys(), f"{path}: {value.keys() - hints.keys()}"
    assert hint.__required_keys__ <= value.keys(), (
        f"{path}: {hint.__required_keys__ - value.keys()}"
    )
    for name, each in value.items():
        check(each, hints[name], f"{path}.{name}")
