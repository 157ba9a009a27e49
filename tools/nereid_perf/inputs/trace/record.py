"""Record of one request of a trace, whatever file it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """Limits on what is read of traces; beyond them reading fails.

    distinct_bytes: bytes of requests that differ from each other.
    """

    requests: int = 5_000_000
    object_chars: int = 64 << 20
    distinct_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class TraceInput:
    """Input of a recorded request.

    shape: as sent, with the batch dimension. datatype: "" means that of the model's metadata.
    values: elements of a JSON array. raw: the tensor's bytes. If both are `None` the tensor is made
    up, with texts of string_bytes each (`None`: of the plan's size).
    """

    name: str
    shape: tuple[int, ...]
    datatype: str = ""
    values: list[Any] | None = None
    raw: bytes | None = None
    string_bytes: int | None = None


class TraceSequence(NamedTuple):
    """Place of a request in a sequence."""

    id: int | str
    is_start: bool
    is_end: bool


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """Recorded request.

    place: the request's place in its file, for errors. key: equal in requests with equal inputs and
    parameters. inputs: `None` means the plan's own.
    """

    place: str
    at_ns: int
    model: str
    version: str = ""
    key: str = ""
    inputs: tuple[TraceInput, ...] | None = None
    parameters: tuple[tuple[str, str | int | float | bool], ...] = ()
    sequence: TraceSequence | None = None
