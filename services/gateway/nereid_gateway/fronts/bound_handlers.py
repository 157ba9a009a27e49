"""Binds the handler names in the tables of endpoints and methods to the handlers of a front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def bind_handlers(names: Iterable[str], objects: Iterable[object]) -> dict[str, Any]:
    """Return the bound method for each name, such as "HealthEndpoints.live", keyed by that name.

    A name is left out if no object has its class, because the gateway then does not serve it.

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
