"""JSON merge patches (RFC 7396), which turn one document into another."""

from __future__ import annotations

from typing import Any


def merge_patch(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the patch that turns old into new. Null means "delete", so neither may contain it."""
    patch: dict[str, Any] = {}
    for name, value in new.items():
        before = old.get(name)
        if before is value:
            continue
        if type(value) is dict and type(before) is dict:
            changes = merge_patch(before, value)
            if changes:
                patch[name] = changes
        elif value != before or type(value) is not type(before):
            patch[name] = value
    for name in old:
        if name not in new:
            patch[name] = None
    return patch
