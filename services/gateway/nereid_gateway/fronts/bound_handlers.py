"""Binds the handler names in the tables of endpoints and methods to the handlers of a front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def bind_handlers(names: Iterable[str], objects: Iterable[object]) -> dict[str, Any]:
    """Return the bound handler methods, keyed by name. A handler that no object has is left out."""
    by_class = {type(each).__name__: each for each in objects}
    handlers = {}
    for name in names:
        class_name, _, method = name.partition(".")
        if class_name in by_class:
            handlers[name] = getattr(by_class[class_name], method)
    return handlers
