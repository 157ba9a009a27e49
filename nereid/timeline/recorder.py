"""What one service records: its rings, and what they have of the last seconds."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from itertools import chain
from operator import itemgetter
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid.pb import nereid_pb2 as pb
from nereid.timeline import wire
from nereid.timeline.records import Event
from nereid.timeline.ring import MAX_RECORDS, PackedRing, Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nereid.timeline.ring import AnyRing

_MAX_EVENTS: Final = 10_000
# Rings that nothing will be added to.
_MAX_ENDED: Final = 1_000


def clock_identity() -> str:
    """Equal for processes whose monotonic clocks are one: the same boot of one kernel, and the same
    time namespace. Empty: unknown.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return ""


class RecordEvent(Protocol):
    """Records an event, as records.Event says; from_ns 0: it has no duration, else it ends now."""

    def __call__(self, what: str, subject: str, detail: str = "", *, from_ns: int = 0) -> None: ...


class Recorder:
    """The rings of a service."""

    def __init__(
        self,
        kind: str,
        name: str,
        seconds: float,
        clock: str | None = None,
        max_records: int = MAX_RECORDS,
    ) -> None:
        """For a service as ServiceTimeline names it. seconds: what is older is shown to nobody.
        clock: in place of this process's clock_identity().
        """
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
        self._events = self.add_ring(Event, itemgetter(1), _MAX_EVENTS)

    def add_ring(
        self, record: type[Any], read: Callable[[Any], Any], max_records: int | None = None
    ) -> Ring:
        """The ring of a kind of records; parameters as of Ring."""
        ring = Ring(read, max_records or self._max_records)
        self._rings[record].append(ring)
        return ring

    def add_packed_ring(
        self,
        record: type[Any],
        read: Callable[[bytes, list[Any]], Iterable[tuple[int, Any]]],
    ) -> PackedRing:
        """As add_ring(), a packed one. A kind of records may have one for each thread."""
        ring = PackedRing(read, self._last_ns)
        self._rings[record].append(ring)
        return ring

    def remove_ring(self, record: type[Any], ring: PackedRing) -> None:
        """Nothing will be added to a ring any more; what it has is kept as long as if there were.
        From any thread.
        """
        oldest_ns = monotonic_ns() - self._last_ns
        with self._lock:
            ended = self._ended
            ended.append((record, ring))
            while len(ended) > _MAX_ENDED or (ended and ended[0][1].last_ended_ns < oldest_ns):
                kind, forgotten = ended.popleft()
                self._rings[kind].remove(forgotten)

    def add_unfinished(self, record: type[Any], find: Callable[[], Iterable[Any]]) -> None:
        """find: gives records of what has begun and not ended."""
        self._unfinished[record] = find

    def record_event(self, what: str, subject: str, detail: str = "", *, from_ns: int = 0) -> None:
        """A RecordEvent."""
        now_ns = monotonic_ns()
        to_ns = now_ns if from_ns else 0
        self._events.append((now_ns, Event(what, subject, from_ns or now_ns, to_ns, detail)))

    def frames(self, last_ns: int) -> Iterator[bytes]:
        """The service, and its records of so much time before now. The rings are looked at by the
        time that the first frame is there, and each further one is made as it is asked for.
        """
        now_ns = monotonic_ns()
        from_ns = max(self._started_ns, now_ns - min(last_ns, self._last_ns))
        rings = [(kind, each) for kind, some in self._rings.items() for each in list(some)]
        found = [(kind, ring.since(from_ns)) for kind, ring in rings]
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
        records = (wire.records_frames(kind, ended) for kind, ended in found)
        begun = (wire.records_frames(kind, some) for kind, some in unfinished if some)
        frames = chain.from_iterable(chain(begun, records))
        return chain((wire.service_frame(service),), frames)
