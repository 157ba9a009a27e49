"""Enumerations of the API, which name their values as the real backend's do."""

from __future__ import annotations

import enum


class NamedEnum(enum.IntEnum):
    """Numbers that print as their names."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)
