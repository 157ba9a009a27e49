"""The recorder of one service, which keeps records in rings and makes frames of them."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from itertools import chain
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid.pb import nereid_pb2 as pb
from nereid.timeline import wire
from nereid.timeline.event_log import EventLog
from nereid.timeline.records import Event
from nereid.timeline.ring import MAX_RECORDS, PackedRing, Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nereid.timeline.ring import AnyRing

# Maximum number of rings that are kept although they get no more records.
_MAX_ENDED: Final = 1_000


def clock_identity() -> str:
    """Return an identity of the monotonic clock (boot and time namespace), or ""."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return ""


class RecordEvent(Protocol):
    """Function that records a `records.Event` from from_ns (0: no duration) until now."""

    def __call__(  # noqa: PLR0913 (by keyword)
        self,
        what: str,
        subject: str,
        detail: str = "",
        *,
        from_ns: int = 0,
        model: str = "",
        cause: str = "",
        principal: str = "",
    ) -> None:
        """Record an event. The parameters are fields of `Event` and `LoggedEvent`."""


class Recorder:
    """All rings of a service."""

    def __init__(
        self,
        kind: str,
        name: str,
        seconds: float,
        clock: str | None = None,
        max_records: int = MAX_RECORDS,
    ) -> None:
        """Create the recorder of a service. Records older than `seconds` are not shown."""
        self.kind = kind
        self.name = name
        self.clock = clock_identity() if clock is None else clock
        self._last_ns = round(seconds * 1e9)
        self._started_ns = monotonic_ns()
        self._max_records = max_records
        self._rings: defaultdict[type[Any], list[AnyRing]] = defaultdict(list)
        self._ended: deque[tuple[type[Any], PackedRing]] = deque()
        self._lock = threading.Lock()
        self._unfinished: dict[type[Any], Callable[[], Iterable[Any]]] = {}
        self.events = EventLog()
        self._rings[Event].append(self.events)

    def add_ring(
        self, record: type[Any], read: Callable[[Any], Any], max_records: int | None = None
    ) -> Ring:
        """Return a new ring for a kind of records. The other parameters are passed to `Ring`."""
        ring = Ring(read, max_records or self._max_records)
        self._rings[record].append(ring)
        return ring

    def add_packed_ring(
        self,
        record: type[Any],
        read: Callable[[bytes, list[Any]], Iterable[tuple[int, Any]]],
    ) -> PackedRing:
        """Return a new packed ring. A kind of records may have one packed ring for each thread."""
        ring = PackedRing(read, self._last_ns)
        self._rings[record].append(ring)
        return ring

    def remove_ring(self, record: type[Any], ring: PackedRing) -> None:
        """Forget an ended ring once its records are too old. Any thread may call this."""
        oldest_ns = monotonic_ns() - self._last_ns
        with self._lock:
            ended = self._ended
            ended.append((record, ring))
            while len(ended) > _MAX_ENDED or (ended and ended[0][1].last_ended_ns < oldest_ns):
                kind, forgotten = ended.popleft()
                self._rings[kind].remove(forgotten)

    def add_unfinished(self, record: type[Any], find: Callable[[], Iterable[Any]]) -> None:
        """Register a function that returns records of work that has begun but not ended."""
        self._unfinished[record] = find

    def frames(self, last_ns: int) -> Iterator[bytes]:
        """Yield a frame about the service, then its records of the last `last_ns`.

        The rings are read before the first frame. Each further frame is made when it is requested.
        """
        now_ns = monotonic_ns()
        from_ns = max(self._started_ns, now_ns - min(last_ns, self._last_ns))
        rings = [(kind, ring) for kind, some in self._rings.items() for ring in list(some)]
        recent = [(kind, ring.since(from_ns)) for kind, ring in rings]
        unfinished = [(kind, list(find())) for kind, find in self._unfinished.items()]
        complete_from_ns = max(from_ns, *(ring.lost_until_ns for _, ring in rings))
        service = pb.TimelineService(
            kind=self.kind,
            name=self.name,
            from_ns=complete_from_ns,
            to_ns=now_ns,
            clock=self.clock,
            now_ns=now_ns,
        )
        records = (wire.records_frames(kind, ended) for kind, ended in recent)
        begun = (wire.records_frames(kind, some) for kind, some in unfinished if some)
        frames = chain.from_iterable(chain(begun, records))
        return chain((wire.service_frame(service),), frames)
