"""Joins the records of all services of a mesh: requests, batches, executions and instances.

Records may be missing: an unknown value is None, empty or zero. The join takes time linear in the
number of records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from nereid.timeline.records import (
    DELAY,
    LOADING,
    MEMORY,
    RATE_LIMITER,
    BatchRecord,
    EndedRequest,
    Event,
    ExecutionRecord,
    GatewayRequest,
    Member,
    Wait,
)
from nereid_timeline.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.timeline.records import Record, ServiceTimeline, Timeline

# Steps of a request, in order.
AT_GATEWAY: Final = "gateway"
ADMISSION: Final = "admission"
QUEUE: Final = "queue"
BEHIND: Final = "behind a batch"
FAILED: Final = "failed execution"
BETWEEN: Final = "between steps"
TO_EXECUTOR: Final = "to executor"
INPUT: Final = "input copy"
COMPUTE: Final = "compute"
OUTPUT: Final = "output copy"
EXECUTOR_REPLY: Final = "executor reply"
FROM_EXECUTOR: Final = "from executor"
# A request's time at a scheduler that has no record of it.
AT_SCHEDULER: Final = "scheduler"
GATEWAY_REPLY: Final = "gateway reply"
# Key: Wait.reason. Value: a step.
_WAITS: Final = {
    DELAY: "wait for delay",
    RATE_LIMITER: "wait for rate limiter",
    MEMORY: "wait for memory",
    LOADING: "wait for loading",
}
# Reasons for which requests wait even before they are queued.
_BEFORE_QUEUE: Final = (MEMORY, LOADING)

EXECUTOR: Final = "executor"
# Values of Event.what.
LOST_EXECUTOR: Final = "executor lost"
LOST_INSTANCE: Final = "instance lost"
JOINED_EXECUTOR: Final = "executor joined"

Model: TypeAlias = tuple[str, str]

_DURATIONS: Final = ("input_ns", "infer_ns", "output_ns")


@dataclass(slots=True)
class Batch:
    """A batch: the scheduler's record of it, and the executor's record of its execution."""

    record: BatchRecord
    scheduler: str
    execution: ExecutionRecord | None = None
    # The batch was executing at the end of the timeline, which counts as its end.
    executing: bool = False

    @property
    def model(self) -> Model:
        """Name and version of the batch's model."""
        return self.record.model, self.record.version

    @property
    def name(self) -> str:
        """Name and version of the batch's model, as text."""
        return model_name(self.model)

    @property
    def began_ns(self) -> int:
        """Time at which the instance began to work on the batch."""
        return max(self.record.started_ns, self.record.sent_ns)

    @property
    def phases(self) -> tuple[int, int, int]:
        """Durations of the input copy, the inference and the output copy, in nanoseconds."""
        done = self.execution
        if done is None:
            return self.record.input_ns, self.record.infer_ns, self.record.output_ns
        return (
            max(done.input_ns - done.received_ns, 0),
            max(done.infer_ns - done.input_ns, 0),
            max(done.output_ns - done.infer_ns, 0),
        )


class Attempt(NamedTuple):
    """One batch that a request was in, and the request's member record in the batch."""

    batch: Batch
    member: Member


@dataclass(slots=True)
class Request:
    """A request: the records of its gateway and its scheduler, and the batches that it was in."""

    # The number is unique in the whole mesh.
    number: int
    gateway: GatewayRequest | None = None
    ended: EndedRequest | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def model(self) -> Model:
        """Name and version of the request's model; empty if they are not known."""
        # The gateway's record lacks the version if the scheduler chose it. An ensemble's batches
        # are of other models.
        if self.ended is not None:
            return self.ended.model, self.ended.version
        if self.attempts:
            return self.attempts[-1].batch.model
        known = self.gateway
        return ("", "") if known is None else (known.model, known.version)

    @property
    def total_ns(self) -> int:
        """Time at the gateway, from the request's first byte to its response's last byte."""
        return 0 if self.gateway is None else self.gateway.ended_ns - self.gateway.received_ns


@dataclass(slots=True)
class Instance:
    """An instance of a model, and its batches in the time from from_ns to to_ns."""

    model: Model
    name: str
    executor: str
    batches: list[Batch] = field(default_factory=list)
    from_ns: int = 0
    to_ns: int = 0

    @property
    def busy(self) -> Intervals:
        """Times at which the instance had a batch."""
        return Intervals((batch.record.sent_ns, batch.record.finished_ns) for batch in self.batches)

    @property
    def idle(self) -> Intervals:
        """Times at which the instance had no batch."""
        return self.busy.gaps(self.from_ns, self.to_ns)


@dataclass(slots=True)
class Joined:
    """Everything that a mesh did; all times are by the clock of the service that was asked.

    alone: executions without a known batch, by executor.
    """

    epoch_ns: int = 0
    missing: list[str] = field(default_factory=list)
    services: list[ServiceTimeline] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)
    by_gateway: dict[str, list[Request]] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    alone: dict[str, list[ExecutionRecord]] = field(default_factory=dict)
    waits: list[tuple[str, Wait]] = field(default_factory=list)
    ended: list[tuple[str, EndedRequest]] = field(default_factory=list)
    # Key: a model, then a reason. Value: when requests waited for that reason.
    waited: dict[Model, dict[str, Intervals]] = field(default_factory=dict)
    events: list[tuple[str, Event]] = field(default_factory=list)

    @property
    def span(self) -> tuple[int, int]:
        """Start and end of the time in which the gateways' and schedulers' records are complete."""
        known = [service for service in self.services if service.to_ns > service.from_ns]
        # An executor that joined late had nothing to record before.
        known = [service for service in known if service.kind != EXECUTOR] or known
        if not known:
            return 0, 0
        return max(service.from_ns for service in known), max(service.to_ns for service in known)

    def timed(self) -> Iterator[Request]:
        """Yield the requests whose times are all known; skip requests cut off by a ring buffer."""
        start = self.span[0]
        for request in self.requests.values():
            gateway = request.gateway
            if gateway is None or not 0 < gateway.received_ns <= gateway.ended_ns:
                continue
            if request.attempts or request.ended or gateway.received_ns >= start:
                yield request

    def lost_instances(self) -> dict[tuple[str, str], list[Event]]:
        """Map (executor, instance) to the events of its loss, the executor's own event first."""
        lost: dict[tuple[str, str], list[Event]] = {}
        for service, event in self.events:
            if event.what != LOST_INSTANCE:
                continue
            kind, _, name = service.partition(" ")
            if kind == EXECUTOR:
                lost.setdefault((name, event.subject), []).insert(0, event)
            else:
                # In a scheduler's event, the detail is the name of the executor.
                lost.setdefault((event.detail, event.subject), []).append(event)
        return lost

    def queue_waits(self, model: Model, start: int, end: int) -> dict[str, int]:
        """Map a reason to the nanoseconds of a span in which queued requests waited for it."""
        return _waits_within(self.waited.get(model, {}), start, end)

    def early_waits(self, request: Request) -> dict[str, int]:
        """Map a reason to the nanoseconds that the request waited for it before it was queued."""
        gateway = request.gateway
        if gateway is None:
            return {}
        if request.attempts:
            end = request.attempts[0].member.received_ns
        else:
            end = gateway.ended_ns if request.ended is None else request.ended.received_ns
        known = self.waited.get(request.model, {})
        early = {reason: spans for reason, spans in known.items() if reason in _BEFORE_QUEUE}
        return _waits_within(early, gateway.received_ns, end)

    def steps(self, request: Request) -> list[tuple[str, int]]:
        """Return the steps that took any time, in order, with their durations in nanoseconds."""
        steps: list[tuple[str, int]] = []
        cursor = 0
        for name, end, batch in _ends(request):
            if not end:
                continue
            if not cursor:
                cursor = end
            elif end > cursor:
                waits: dict[str, int] = {}
                if name == QUEUE:
                    model = request.model if batch is None else batch.model
                    waits = self.queue_waits(model, cursor, end)
                elif name in {AT_GATEWAY, AT_SCHEDULER}:
                    waits = self.early_waits(request)
                steps.append((name, end - cursor - sum(waits.values())))
                steps += [(wait_name(reason), part) for reason, part in waits.items()]
                cursor = end
        return [step for step in steps if step[1]]


def label(kind: str, name: str) -> str:
    """Return a service's label, with its kind: services of several kinds may share a name."""
    return f"{kind} {name}"


def model_name(model: Model) -> str:
    """Return a model's name, followed by its version if it has one."""
    return ":".join(part for part in model if part)


def wait_name(reason: str) -> str:
    """Return the name of the step in which requests wait for this reason."""
    return _WAITS.get(reason, f"wait for {reason}")


def joined(timeline: Timeline) -> Joined:
    """Shift all times to one clock, and join the records that belong together by their ids."""
    whole = Joined(timeline.epoch_ns, list(timeline.missing), timeline.services)
    executions: dict[tuple[str, str, int], list[ExecutionRecord]] = {}
    for service in whole.services:
        shift = service.offset_ns
        if shift:
            service.from_ns, service.to_ns = service.from_ns + shift, service.to_ns + shift
            service.records = [_aligned(record, shift) for record in service.records]
            service.offset_ns = 0
        _sort_in(whole, service, executions)
    whole.batches.sort(key=lambda batch: batch.record.sent_ns)
    for batch in whole.batches:
        batch.execution = _execution_of(batch.record, executions)
        for member in batch.record.members:
            if not member.number:
                # The scheduler itself made this request.
                continue
            request = _request(whole, member.number)
            request.attempts = (*request.attempts, Attempt(batch, member))
    for (executor, _, _), left in executions.items():
        if left:
            whole.alone.setdefault(executor, []).extend(left)
    whole.waited = _waited(whole)
    whole.events.sort(key=lambda event: event[1].from_ns)
    whole.instances = _instances(whole)
    return whole


def _sort_in(
    whole: Joined,
    service: ServiceTimeline,
    executions: dict[tuple[str, str, int], list[ExecutionRecord]],
) -> None:
    own = label(service.kind, service.name)
    for record in service.records:
        match record:
            case GatewayRequest():
                request = _request(whole, record.number)
                request.gateway = record
                whole.by_gateway.setdefault(own, []).append(request)
            case BatchRecord(finished_ns=0):
                begun = record._replace(finished_ns=service.to_ns)
                whole.batches.append(Batch(begun, own, executing=True))
            case BatchRecord():
                whole.batches.append(Batch(record, own))
            case EndedRequest():
                _request(whole, record.number).ended = record
                whole.ended.append((own, record))
            case ExecutionRecord():
                # Batch numbers begin again with each new stream of an instance.
                key = own, record.instance, record.number
                executions.setdefault(key, []).append(record)
            case Wait():
                whole.waits.append((own, record))
            case Event():
                whole.events.append((own, record))


def _request(whole: Joined, number: int) -> Request:
    request = whole.requests.get(number)
    if request is None:
        request = whole.requests[number] = Request(number)
    return request


def _execution_of(
    batch: BatchRecord, executions: dict[tuple[str, str, int], list[ExecutionRecord]]
) -> ExecutionRecord | None:
    candidates = executions.get((label(EXECUTOR, batch.executor), batch.instance, batch.number), [])
    for at, execution in enumerate(candidates):
        # Several executions may have this number; the right one was received while the batch was at
        # the instance. For a single one the time is not checked, because clocks differ a little.
        near = len(candidates) == 1 or batch.sent_ns <= execution.received_ns <= batch.finished_ns
        if near and (execution.model, execution.version) == (batch.model, batch.version):
            return candidates.pop(at)
    return None


def _waited(whole: Joined) -> dict[Model, dict[str, Intervals]]:
    """Return the waits of each model version; a wait without a version counts for every version."""
    spans: dict[Model, dict[str, list[tuple[int, int]]]] = {}
    for _, wait in whole.waits:
        reasons = spans.setdefault((wait.model, wait.version), {})
        reasons.setdefault(wait.reason, []).append((wait.from_ns, wait.to_ns))
    models = {
        *spans,
        *(batch.model for batch in whole.batches),
        *((record.model, record.version) for _, record in whole.ended),
    }
    waited: dict[Model, dict[str, Intervals]] = {}
    for name, version in models:
        own, of_any = spans.get((name, version), {}), spans.get((name, ""), {})
        by_reason = waited[name, version] = {
            reason: Intervals([*own.get(reason, ()), *of_any.get(reason, ())])
            for reason in sorted({*own, *of_any})
        }
        loading, memory = by_reason.get(LOADING), by_reason.get(MEMORY)
        if loading and memory:
            # A load first waits for memory, which tells the user more. Count that time once.
            rest = memory.gaps(loading.starts[0], loading.ends[-1])
            by_reason[LOADING] = loading.common(rest)
    return waited


def _waits_within(waits: dict[str, Intervals], start: int, end: int) -> dict[str, int]:
    """Map a reason to the nanoseconds waited for it in a span; no time counts for two reasons."""
    rest, parts = max(end - start, 0), {}
    for reason, spans in waits.items():
        part = min(spans.within(start, end), rest)
        if part:
            rest -= part
            parts[reason] = part
    return parts


def _instances(whole: Joined) -> list[Instance]:
    spans = {
        label(service.kind, service.name): (service.from_ns, service.to_ns)
        for service in whole.services
    }
    instances: dict[tuple[Model, str, str], Instance] = {}
    for batch in whole.batches:
        record = batch.record
        key = batch.model, record.executor, record.instance
        instance = instances.get(key)
        if instance is None:
            instance = instances[key] = Instance(batch.model, record.instance, record.executor)
            instance.from_ns, instance.to_ns = spans[batch.scheduler]
        # An instance may have had several schedulers.
        instance.from_ns = min(instance.from_ns or record.sent_ns, record.sent_ns)
        instance.to_ns = max(instance.to_ns, spans[batch.scheduler][1], record.finished_ns)
        instance.batches.append(batch)
    joins: dict[str, list[int]] = {}
    ends: dict[str, list[int]] = {}
    for _, event in whole.events:
        if event.what == JOINED_EXECUTOR:
            joins.setdefault(event.subject, []).append(event.from_ns)
        elif event.what == LOST_EXECUTOR:
            ends.setdefault(event.subject, []).append(event.from_ns)
    lost = whole.lost_instances()
    for (_, executor, name), instance in instances.items():
        # An instance cannot be idle before its executor joined or after the instance was lost.
        last = max(batch.record.finished_ns for batch in instance.batches)
        losses = [
            *ends.get(executor, ()),
            *(event.from_ns for event in lost.get((executor, name), ())),
        ]
        instance.to_ns = min([instance.to_ns, *(time for time in losses if time >= last)])
        first = instance.batches[0].record.sent_ns
        begins = [time for time in joins.get(executor, ()) if time <= first]
        instance.from_ns = max([instance.from_ns, *begins])
    return sorted(
        instances.values(), key=lambda instance: (instance.model, instance.executor, instance.name)
    )


# A step, its end, and, for the queue, the batch that the request waited for.
_End: TypeAlias = "tuple[str, int, Batch | None]"


def _ends(request: Request) -> Iterator[_End]:
    """Yield each step with its end; the first item is the start of the request."""
    gateway, ended = request.gateway, request.ended
    if gateway is not None:
        yield "", gateway.received_ns, None
    if request.attempts:
        yield AT_GATEWAY, request.attempts[0].member.received_ns, None
        arrival = ADMISSION
        for batch, member in request.attempts:
            yield arrival, member.enqueued_ns, None
            yield QUEUE, batch.record.sent_ns, batch
            for name, end in _execution_ends(batch):
                yield name, end, None
            # The next step of an ensemble, or the request is executed again.
            arrival = BETWEEN
    elif ended is not None:
        yield AT_GATEWAY, ended.received_ns, None
        yield ADMISSION, ended.enqueued_ns, None
        yield QUEUE, ended.ended_ns, None
    if gateway is not None:
        known = request.attempts or ended
        yield GATEWAY_REPLY if known else AT_SCHEDULER, gateway.ended_ns, None


def _execution_ends(batch: Batch) -> Iterator[tuple[str, int]]:
    record, done = batch.record, batch.execution
    began = batch.began_ns
    yield BEHIND, began
    if record.error:
        yield FAILED, record.finished_ns
        return
    if done is None:
        parts = reported_parts(batch)
        yield TO_EXECUTOR, parts[0][1]
        for name, _, end in parts:
            yield name, end
    else:
        yield TO_EXECUTOR, done.received_ns
        yield INPUT, done.input_ns
        yield COMPUTE, done.infer_ns
        yield OUTPUT, done.output_ns
        yield EXECUTOR_REPLY, done.written_ns
    yield FROM_EXECUTOR, record.finished_ns


def reported_parts(batch: Batch) -> tuple[tuple[str, int, int], ...]:
    """Return name, start and end of each phase; the last is assumed to end with the batch."""
    record, parts = batch.record, []
    phases = record.input_ns, record.infer_ns, record.output_ns
    since = max(record.finished_ns - sum(phases), batch.began_ns)
    for name, duration in zip((INPUT, COMPUTE, OUTPUT), phases, strict=True):
        end = max(min(since + duration, record.finished_ns), since)
        parts.append((name, since, end))
        since = end
    return tuple(parts)


# For each type of record, the fields that are times and not durations.
_TIMES: Final = {
    kind: tuple(
        name
        for name in kind._fields
        if name.endswith("_ns") and not (kind is BatchRecord and name in _DURATIONS)
    )
    for kind in (GatewayRequest, BatchRecord, EndedRequest, Wait, ExecutionRecord, Event)
}


def _aligned(record: Record, shift: int) -> Record:
    changed = {}
    for name in _TIMES[type(record)]:
        time = getattr(record, name)
        if time:
            changed[name] = time + shift
    if isinstance(record, BatchRecord):
        members = tuple(
            member._replace(
                received_ns=member.received_ns and member.received_ns + shift,
                enqueued_ns=member.enqueued_ns and member.enqueued_ns + shift,
            )
            for member in record.members
        )
        return record._replace(members=members, **changed)
    return record._replace(**changed)


def latest(timeline: Timeline, duration_ns: int) -> None:
    """Drop, in place, the records that ended before the last duration_ns nanoseconds."""
    for service in timeline.services:
        since = max(service.to_ns - duration_ns, service.from_ns)
        service.records = [record for record in service.records if _end(record) >= since]
        service.from_ns = since


def _end(record: Record) -> int:
    match record:
        case GatewayRequest() | EndedRequest():
            return record.ended_ns
        case BatchRecord():
            return record.finished_ns
        case ExecutionRecord():
            return record.written_ns
        case _:
            return record.to_ns or record.from_ns
