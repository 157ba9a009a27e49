"""One request of a trace, whatever file it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """What is read of traces; more is an error. distinct_bytes: of requests that differ."""

    requests: int = 5_000_000
    object_chars: int = 64 << 20
    distinct_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class TraceInput:
    """shape: as sent, with the batch dimension. datatype "": as the model's metadata says.

    values: of a JSON array; raw: the tensor's bytes; both None: made up, of texts with string_bytes
    each (None: as the plan says).
    """

    name: str
    shape: tuple[int, ...]
    datatype: str = ""
    values: list[Any] | None = None
    raw: bytes | None = None
    string_bytes: int | None = None


class TraceSequence(NamedTuple):
    """A request's place in a sequence."""

    id: int | str
    is_start: bool
    is_end: bool


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """place: of the request in its file, for errors. key: equal in requests with equal inputs and
    parameters. inputs None: the plan's own.
    """

    place: str
    at_ns: int
    model: str
    version: str = ""
    key: str = ""
    inputs: tuple[TraceInput, ...] | None = None
    parameters: tuple[tuple[str, str | int | float | bool], ...] = ()
    sequence: TraceSequence | None = None
