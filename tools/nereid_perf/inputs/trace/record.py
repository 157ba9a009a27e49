"""The record of one request of a trace, for every file format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """Limits on the size of traces; reading a larger trace fails.

    distinct_bytes: total bytes of the requests that differ from each other.
    """

    requests: int = 5_000_000
    object_chars: int = 64 << 20
    distinct_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class TraceInput:
    """An input of a recorded request.

    shape: as sent, with the batch dimension. datatype: "" means the datatype in the model's
    metadata. values: the elements as a JSON array. raw: the tensor's bytes. If values and raw are
    both `None`, the tensor is made up; its texts then have string_bytes bytes each, or the plan's
    size if string_bytes is `None`.
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
    """A recorded request.

    place: where the request is in its file, for error texts. key: equal for requests with equal
    inputs and parameters. inputs: `None` means that the plan's inputs are used.
    """

    place: str
    at_ns: int
    model: str
    version: str = ""
    key: str = ""
    inputs: tuple[TraceInput, ...] | None = None
    parameters: tuple[tuple[str, str | int | float | bool], ...] = ()
    sequence: TraceSequence | None = None
