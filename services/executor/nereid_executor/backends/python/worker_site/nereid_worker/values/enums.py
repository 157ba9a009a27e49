"""Base class of the API's enumerations, whose values print as on Triton's backend."""

from __future__ import annotations

import enum


class NamedEnum(enum.IntEnum):
    """An enumeration of integers that print as `Class.NAME`."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)
