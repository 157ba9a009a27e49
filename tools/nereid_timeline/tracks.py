"""Lays out a timeline for trace viewers, item by item, never all in memory.

Slices of a track never overlap, except with their children. Overlapping slices go to lanes, which
are tracks with the same name.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from nereid_timeline.joined import (
    BEHIND,
    COMPUTE,
    EXECUTOR,
    EXECUTOR_REPLY,
    INPUT,
    OUTPUT,
    QUEUE,
    label,
    model_name,
    reported_parts,
    wait_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nereid.timeline.records import ExecutionRecord
    from nereid_timeline.joined import Joined, Request

Arguments: TypeAlias = tuple[tuple[str, "str | int"], ...]

REQUEST: Final = "request"
BATCH: Final = "batch"
EXECUTION: Final = "execution"
IN_FLIGHT: Final = "in flight"
# Minimum time between two points of a counter.
_COUNTER_NS: Final = 100_000
# A batch's index plus this is the id of its flow. Requests' flows have smaller ids.
_BATCH_FLOWS: Final = 1 << 63
_ALL_BITS: Final = (1 << 64) - 1


class Process(NamedTuple):
    """A service, shown as a process with tracks."""

    id: int
    name: str


class Track(NamedTuple):
    """A line of a process; `lane` numbers the lines that have the same name."""

    id: int
    process: int
    name: str
    lane: int = 0
    counter: bool = False


class Flow(NamedTuple):
    """An arrow between slices: slices with the same flow id are joined in the order of time."""

    id: int
    begins: bool


class Slice(NamedTuple):
    """An item with a duration; its children lie within it, one after the other."""

    track: int
    name: str
    start: int
    end: int
    arguments: Arguments = ()
    flows: tuple[Flow, ...] = ()
    children: tuple[tuple[str, int, int], ...] = ()


class Mark(NamedTuple):
    """An item without a duration."""

    track: int
    name: str
    time: int
    arguments: Arguments = ()


class Count(NamedTuple):
    """The value that a counter has from this time on."""

    track: int
    time: int
    value: int


Item: TypeAlias = Process | Track | Slice | Mark | Count


def laid_out(whole: Joined) -> Iterator[Item]:
    """Yield all items of a timeline; a process or track comes before the items on it."""
    layout = _Layout()
    for item in _items(layout, whole):
        yield from layout.new_lanes
        layout.new_lanes.clear()
        yield item


def _items(layout: _Layout, whole: Joined) -> Iterator[Item]:
    for service in whole.services:
        yield layout.process(label(service.kind, service.name))
    for gateway, requests in whole.by_gateway.items():
        yield from _gateway(layout, gateway, requests)
    yield from _queues(layout, whole)
    yield from _batches(layout, whole)
    yield from _waits(layout, whole)
    yield from _executions(layout, whole)
    yield from _events(layout, whole)


@dataclass(slots=True)
class _Lanes:
    """The lanes with one name; a slice gets the lowest free lane. Add slices by their starts."""

    tracks: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    # Heap of (end of a slice, its lane's number).
    taken: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Layout:
    processes: dict[str, int] = field(default_factory=dict)
    lanes: defaultdict[tuple[int, str], _Lanes] = field(default_factory=lambda: defaultdict(_Lanes))
    # New lanes to yield before the next item.
    new_lanes: list[Track] = field(default_factory=list)
    tracks: int = 0

    def process(self, service: str) -> Process:
        return Process(self.processes.setdefault(service, len(self.processes) + 1), service)

    def lane(self, service: str, name: str, start: int, end: int) -> int:
        """Return the track id for a slice or mark, which must be the next item."""
        process = self.processes[service]
        lanes = self.lanes[process, name]
        while lanes.taken and lanes.taken[0][0] <= start:
            heappush(lanes.free, heappop(lanes.taken)[1])
        if lanes.free:
            lane = heappop(lanes.free)
        else:
            lane = len(lanes.tracks)
            track = self.track(process, name, lane=lane)
            lanes.tracks.append(track.id)
            self.new_lanes.append(track)
        heappush(lanes.taken, (end, lane))
        return lanes.tracks[lane]

    def track(self, process: int, name: str, *, lane: int = 0, counter: bool = False) -> Track:
        self.tracks += 1
        return Track(self.tracks, process, name, lane, counter)

    def counter(
        self, service: str, name: str, changes: Iterable[tuple[int, int]]
    ) -> Iterator[Item]:
        """Yield a counter's track and its values; of values close together, only the last."""
        track = self.track(self.processes[service], name, counter=True)
        yield track
        since, last = 0, None
        for time, value in changes:
            if last is not None and time - since >= _COUNTER_NS:
                yield Count(track.id, *last)
                since = time
            last = time, value
        if last is not None:
            yield Count(track.id, *last)


def _gateway(layout: _Layout, gateway: str, requests: list[Request]) -> Iterator[Item]:
    known = [
        request.gateway
        for request in requests
        if request.gateway and 0 < request.gateway.received_ns <= request.gateway.ended_ns
    ]
    known.sort(key=lambda record: record.received_ns)
    for record in known:
        start, end = record.received_ns, record.ended_ns
        track = layout.lane(gateway, REQUEST, start, end)
        arguments: list[tuple[str, str | int]] = [
            ("model", record.model),
            ("protocol", record.protocol),
        ]
        for name, value in (
            ("version", record.version),
            ("request_id", record.request_id),
            ("trace_id", record.trace_id),
            ("status", record.status),
        ):
            if value:
                arguments.append((name, value))
        flows = (Flow(record.number & _ALL_BITS, begins=True),)
        yield Slice(track, REQUEST, start, end, tuple(arguments), flows)
    yield from layout.counter(
        gateway,
        IN_FLIGHT,
        _levels([record.received_ns for record in known], [record.ended_ns for record in known]),
    )


def _queues(layout: _Layout, whole: Joined) -> Iterator[Item]:
    """Yield each model's queue at each scheduler: a slice per request, and the queue's length."""
    queues: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for batch in whole.batches:
        sent = batch.record.sent_ns
        queue = queues.setdefault((batch.scheduler, batch.name), [])
        queue.extend((member.enqueued_ns, sent, member.number) for member in batch.record.members)
    for scheduler, ended in whole.ended:
        if ended.enqueued_ns and not whole.requests[ended.number].attempts:
            name = model_name((ended.model, ended.version))
            queue = queues.setdefault((scheduler, name), [])
            queue.append((ended.enqueued_ns, ended.ended_ns, ended.number))
    for (scheduler, name), queue in queues.items():
        queue[:] = sorted(entry for entry in queue if 0 < entry[0] <= entry[1])
        for start, end, number in queue:
            track = layout.lane(scheduler, f"{name} queue", start, end)
            request = whole.requests.get(number)
            begins = request is None or request.gateway is None
            flows = (Flow(number & _ALL_BITS, begins),) if number else ()
            yield Slice(track, QUEUE, start, end, (), flows)
        levels = _levels([entry[0] for entry in queue], [entry[1] for entry in queue])
        yield from layout.counter(scheduler, f"{name} queue length", levels)


def _batches(layout: _Layout, whole: Joined) -> Iterator[Item]:
    sizes: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for number, batch in enumerate(whole.batches):
        record = batch.record
        start, end = record.sent_ns, max(record.finished_ns, record.sent_ns)
        name = f"{record.instance} of {record.executor}"
        track = layout.lane(batch.scheduler, name, start, end)
        arguments: Arguments = (
            ("model", batch.name),
            ("size", record.size),
            ("number", record.number),
        )
        if record.error:
            arguments = (*arguments, ("error", record.error))
        flows = [Flow(member.number & _ALL_BITS, begins=False) for member in record.members]
        if batch.execution is not None:
            flows.append(Flow(_BATCH_FLOWS + number, begins=True))
        parts = [(BEHIND, start, batch.began_ns)]
        if batch.execution is None and not record.error:
            parts += reported_parts(batch)
        children = _parts(start, end, *parts)
        yield Slice(track, BATCH, start, end, arguments, tuple(flows), children)
        sizes.setdefault((batch.scheduler, batch.name), []).append((start, record.size))
    for (scheduler, name), changes in sizes.items():
        yield from layout.counter(scheduler, f"{name} batch size", changes)


def _waits(layout: _Layout, whole: Joined) -> Iterator[Item]:
    for scheduler, wait in sorted(whole.waits, key=lambda wait: wait[1].from_ns):
        if wait.to_ns < wait.from_ns:
            continue
        name = f"{model_name((wait.model, wait.version))} waits"
        track = layout.lane(scheduler, name, wait.from_ns, wait.to_ns)
        arguments = (("requests", wait.requests),)
        yield Slice(track, wait_name(wait.reason), wait.from_ns, wait.to_ns, arguments)


def _executions(layout: _Layout, whole: Joined) -> Iterator[Item]:
    done: dict[tuple[str, str], list[tuple[ExecutionRecord, int]]] = {}
    for number, batch in enumerate(whole.batches):
        if batch.execution is not None:
            record = batch.execution
            key = label(EXECUTOR, batch.record.executor), record.instance
            done.setdefault(key, []).append((record, number))
    for executor, records in whole.alone.items():
        for record in records:
            done.setdefault((executor, record.instance), []).append((record, -1))
    for (executor, instance), some in done.items():
        some.sort(key=lambda item: item[0].received_ns)
        before = 0
        for record, number in some:
            # The executor may receive a batch while the instance is busy.
            start = max(record.received_ns, before)
            end = before = max(record.written_ns, start)
            track = layout.lane(executor, instance, start, end)
            children = _parts(
                start, end,
                (INPUT, start, record.input_ns),
                (COMPUTE, record.input_ns, record.infer_ns),
                (OUTPUT, record.infer_ns, record.output_ns),
                (EXECUTOR_REPLY, record.output_ns, record.written_ns),
            )  # fmt: skip
            arguments = (
                ("model", model_name((record.model, record.version))),
                ("size", record.size),
                ("number", record.number),
                ("bytes_in", record.bytes_in),
                ("bytes_out", record.bytes_out),
            )
            flows = (Flow(_BATCH_FLOWS + number, begins=False),) if number >= 0 else ()
            yield Slice(track, EXECUTION, start, end, arguments, flows, children)


def _events(layout: _Layout, whole: Joined) -> Iterator[Item]:
    for service, event in whole.events:
        name = f"{event.what}: {event.subject}"
        arguments: Arguments = (("detail", event.detail),) if event.detail else ()
        end = max(event.to_ns, event.from_ns)
        track = layout.lane(service, "events", event.from_ns, end)
        if event.to_ns:
            yield Slice(track, name, event.from_ns, end, arguments)
        else:
            yield Mark(track, name, event.from_ns, arguments)


def _parts(start: int, end: int, *parts: tuple[str, int, int]) -> tuple[tuple[str, int, int], ...]:
    """Cut the parts to the span, remove overlaps, and return the parts that are left."""
    visible = []
    for name, begin, stop in parts:
        begin_within, stop_within = max(begin, start), min(stop, end)
        if begin and stop_within > begin_within:
            visible.append((name, begin_within, stop_within))
            start = stop_within
    return tuple(visible)


def _levels(starts: list[int], ends: list[int]) -> Iterator[tuple[int, int]]:
    """Yield each time at which the number of open spans changes, and that number."""
    starts, ends = sorted(starts), sorted(ends)
    at = level = 0
    for start in starts:
        # At equal times, starts come first: an empty span begins before it ends.
        while at < len(ends) and ends[at] < start:
            level -= 1
            yield ends[at], level
            at += 1
        level += 1
        yield start, level
    for end in ends[at:]:
        level -= 1
        yield end, level
