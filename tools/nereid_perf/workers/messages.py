"""Messages of parent and worker, and their framing. Pure."""

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
    """First message of the parent; `worker` is the worker's number."""

    plan: Plan
    worker: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Command to have connections for a level."""

    level: LoadLevel


@dataclass(frozen=True, slots=True)
class Start:
    """Command to send requests.

    start_ns: when the schedule begins. most_requests: limit of this worker; `None` means no limit.
    """

    level: LoadLevel
    start_ns: int
    most_requests: int | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Command to send nothing more, and to wait so long for what is in flight."""

    drain_s: float


@dataclass(frozen=True, slots=True)
class Connected:
    """Report of a worker that it has its connections."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report of all requests that have ended since the last report.

    until_ns: no request that ended before this time is missing. cpu_s, waited_s: CPU time of the
    process so far, and how long it waited for a CPU. delayed, in_flight: see Generator. ended:
    everything is sent, and has ended. final: this is the reply to Stop.
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
    """Report of a worker that cannot go on."""

    why: str


def encoded(message: Any) -> bytes:
    """Return the bytes of a message, with its length before it."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _SIZE.pack(len(content)) + content


class Decoder:
    """Decoder that cuts messages out of a pipe's bytes."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the messages that the data completes."""
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
