"""Lookup of the handlers that tables of endpoints name, among the objects of a front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def bind_handlers(names: Iterable[str], objects: Iterable[object]) -> dict[str, Any]:
    """Return the bound method of each name, such as "HealthEndpoints.live", by that name.

    Names of a class without an object are left out: the gateway does not serve them.

    Raises:
        AttributeError: a class has no such method.
    """
    by_class = {type(each).__name__: each for each in objects}
    handlers = {}
    for name in names:
        class_name, _, method = name.partition(".")
        if class_name in by_class:
            handlers[name] = getattr(by_class[class_name], method)
    return handlers
