"""The two forms of Nereid: pure Python, and with its hot modules compiled."""

from __future__ import annotations

from typing import Any

import pytest

from nereid.version import is_compiled

# For what extends or replaces a part of a listed module, or counts its lines.
pure_only = pytest.mark.skipif(is_compiled(), reason="compiled classes cannot be changed or traced")


def attributes(record: object) -> dict[str, Any]:
    """The attributes of an object of a class with slots, by name."""
    cls: Any = type(record)
    # A compiled class has no slots, but a list of its attributes.
    names = cls.__mypyc_attrs__ if hasattr(cls, "__mypyc_attrs__") else cls.__slots__
    return {name: getattr(record, name) for name in names}
