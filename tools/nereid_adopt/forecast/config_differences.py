"""Differences between the configurations that two servers report for one model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Fields whose values depend on the machine, or that both servers fill in in their own way.
_OWN_FIELDS: Final = frozenset({"instance_group", "optimization", "model_transaction_policy"})


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return fields with different values; a default value equals a missing field."""
    return [
        f"{field}: {json.dumps(old.get(field))} -> {json.dumps(new.get(field))}"
        for field in sorted({*old, *new} - _OWN_FIELDS)
        if without_defaults(old.get(field)) != without_defaults(new.get(field))
    ]


def without_defaults(value: Any) -> Any:
    """Return a value without members that have their defaults, for comparisons."""
    if isinstance(value, dict):
        kept = {name: without_defaults(item) for name, item in value.items()}
        return {name: item for name, item in kept.items() if item is not None} or None
    if isinstance(value, list):
        # Tensors that a backend completes come in any order.
        return sorted(map(without_defaults, value), key=_sorted_text) or None
    # Numbers of 64 bits are text in protobuf's JSON.
    if value in (0, "0", "", False, None) or value in _DEFAULT_NAMES:
        return None
    return str(value)


def _sorted_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


_DEFAULT_NAMES: Final = ("FORMAT_NONE", "MODEL_PRIORITY_DEFAULT", "REJECT")
