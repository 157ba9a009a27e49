"""Applies merge patches as RFC 7396 has it."""

from __future__ import annotations

from typing import Any


def patched(target: Any, patch: Any) -> Any:
    """A target with a patch."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = patched(result.get(name), value)
    return result
