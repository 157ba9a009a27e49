"""The record of one request of a trace, for every file format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """Limits on traces; distinct_bytes is the total size of the requests that differ."""

    requests: int = 5_000_000
    object_chars: int = 64 << 20
    distinct_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class TraceInput:
    """An input of a recorded request; datatype "" means the metadata's.

    If values and raw are `None`, the tensor is made up. Its texts have string_bytes bytes, or if
    that is `None`, the plan's number.
    """

    name: str
    shape: tuple[int, ...]
    datatype: str = ""
    values: list[Any] | None = None
    raw: bytes | None = None
    string_bytes: int | None = None


class TraceSequence(NamedTuple):
    """The place of a request in a sequence."""

    id: int | str
    is_start: bool
    is_end: bool


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """A recorded request. key: equal for equal inputs. inputs: `None` means the plan's."""

    place: str
    at_ns: int
    model: str
    version: str = ""
    key: str = ""
    inputs: tuple[TraceInput, ...] | None = None
    parameters: tuple[tuple[str, str | int | float | bool], ...] = ()
    sequence: TraceSequence | None = None
