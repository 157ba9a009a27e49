"""The messages between the parent and a worker, and their framing."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid_perf.measurement import LoadLevel
    from nereid_perf.plan import Plan

_SIZE: Final = Struct(">I")


@dataclass(frozen=True, slots=True)
class Begin:
    """The parent's first message; `worker` is the worker's number."""

    plan: Plan
    worker: int


@dataclass(frozen=True, slots=True)
class Connect:
    """A command to open the connections for a level."""

    level: LoadLevel


@dataclass(frozen=True, slots=True)
class Start:
    """A command to send requests; most_requests is this worker's limit, or `None`."""

    level: LoadLevel
    start_ns: int
    most_requests: int | None


@dataclass(frozen=True, slots=True)
class Stop:
    """A command to stop sending, and to wait for requests in flight for at most this time."""

    drain_s: float


@dataclass(frozen=True, slots=True)
class Connected:
    """A worker's report that its connections are open."""


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's report of all requests that have ended since its last report.

    until_ns: the report is complete before this time. cpu_s, waited_s: so far. final: it replies to
    Stop.
    """

    until_ns: int
    cpu_s: float
    waited_s: float
    delayed: int
    in_flight: int
    rows: bytes
    gaps: bytes
    new_texts: tuple[str, ...]
    timings: bytes
    new_phases: tuple[str, ...]
    ended: bool
    final: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """A report of a worker that cannot go on."""

    why: str


def encoded(message: Any) -> bytes:
    """Return the bytes of a message, preceded by its length."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _SIZE.pack(len(content)) + content


class Decoder:
    """Cuts the bytes of a pipe into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Add data, and yield the messages that are now complete."""
        rest = self._rest
        rest += data
        while len(rest) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(rest)
            end = _SIZE.size + size
            if len(rest) < end:
                return
            content = bytes(rest[_SIZE.size : end])
            del rest[:end]
            yield pickle.loads(content)  # noqa: S301 (from our own process)
