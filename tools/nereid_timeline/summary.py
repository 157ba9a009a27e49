"""Summarizes a timeline in plain statements with figures, problems first.

A problem must be large in proportion, and long enough for a client to notice: a mesh that serves
its load well has none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.facts.reasons import Statement
from nereid.timeline.records import DELAY, LOADING, MEMORY, RATE_LIMITER
from nereid_timeline.intervals import Intervals
from nereid_timeline.joined import LOST_EXECUTOR, QUEUE, model_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nereid.timeline.records import Event, Member
    from nereid_timeline.joined import Batch, Instance, Joined, Model, Request

_MS: Final = 1_000_000
# A stall takes at least this many times the usual time for its size, and this long.
_STALL_TIMES: Final = 10
_STALL_NS: Final = 200 * _MS
# Stalls are at most this share of all executions, and this many times as long as the longest other.
# Otherwise inputs probably differ. `_STALL_GAP_OF_SOME` is for stalls that are only some of the
# long.
_STALL_SHARE: Final = 0.05
_STALL_GAP: Final = 2
_STALL_GAP_OF_SOME: Final = 3
# Executors on busy machines are often held up for a moment. Shorter times are not reported.
_HELD_UP_NS: Final = 500 * _MS
# Minimum number of executions for a usual time.
_FEWEST: Final = 8
# A wait is a problem at this share of the requests' time (`_DELAY_SHARE`: batching delay), and
# `_WAIT_NS` on average over `_WAIT_REQUESTS` requests.
_WAIT_SHARE: Final = 0.4
_DELAY_SHARE: Final = 0.5
_WAIT_NS: Final = 2 * _MS
_WAIT_REQUESTS: Final = 10
# Instances that are idle for less than this share have no capacity left; a model that they saturate
# has requests that wait for them for most of their time.
_SATURATED_IDLE: Final = 0.05
_SATURATED_SHARE: Final = 0.5
# Copies are a problem if they take longer than the model, and this long per batch.
_COPY_NS: Final = 1 * _MS
_SHOWN_BYTES: Final = 100_000
_SLOWEST: Final = 0.01
_SHOWN: Final = 10
_SHOWN_MODELS: Final = 50
# Approximate maximum number of requests from which the usual steps are computed.
_SAMPLE: Final = 20_000
NOTHING: Final = "nothing to do"
ANOTHER: Final = "another instance"


@dataclass(slots=True)
class SlowRequest:
    """A slow request with its steps; `number` is unique in the whole mesh."""

    number: int
    request_id: str
    trace_id: str
    model: str
    version: str
    total_ns: int
    attempts: int
    steps: list[tuple[str, int]]


@dataclass(slots=True)
class Summary:
    """Statements about a timeline, problems first, and its slowest requests."""

    statements: list[Statement]
    slowest: list[SlowRequest]

    @property
    def problems(self) -> bool:
        """True if any statement is a problem."""
        return any(statement.problem for statement in self.statements)


@dataclass(slots=True)
class _ModelWork:
    model: Model
    batches: list[Batch] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    # Number of the model's requests, and the sum of their times in the mesh.
    requests: int = 0
    time_ns: int = 0
    waits_ns: Counter[str] = field(default_factory=Counter)
    # Sum of the requests' times in the queue, whatever they waited for.
    queued_ns: int = 0

    @property
    def name(self) -> str:
        return model_name(self.model)

    @property
    def executed(self) -> list[Batch]:
        return [batch for batch in self.batches if not (batch.record.error or batch.executing)]

    @property
    def executing(self) -> list[Batch]:
        return [batch for batch in self.batches if batch.executing]


class _Lost(NamedTuple):
    executors: dict[str, str]
    instances: dict[tuple[str, str], list[Event]]


def summarized(whole: Joined, max_batch_sizes: Mapping[Model, int] | None = None) -> Summary:
    """Return all statements about a timeline; `max_batch_sizes` are those that are known."""
    models = _by_model(whole)
    lost = _Lost(
        {event.subject: event.detail for _, event in whole.events if event.what == LOST_EXECUTOR},
        whole.lost_instances(),
    )
    statements = [
        *_losses(whole, lost),
        *_stalls(models),
        *(problem for work in models for problem in _problems(work, lost)),
        *(problem for work in models for problem in _saturated(work, lost)),
        *_failed_events(whole),
        *_requests(whole),
        *_tail(whole),
        *_latencies(whole),
        *(fact for work in models for fact in _facts(whole, work, max_batch_sizes or {})),
        *_incomplete(whole),
    ]
    return Summary(sorted(statements, key=lambda statement: not statement.problem), _slowest(whole))


def _by_model(whole: Joined) -> list[_ModelWork]:
    models: dict[Model, _ModelWork] = {}
    for batch in whole.batches:
        work = models.setdefault(batch.model, _ModelWork(batch.model))
        work.batches.append(batch)
        record = batch.record
        for member in record.members:
            work.requests += 1
            work.time_ns += max(record.finished_ns - member.enqueued_ns, 0)
            work.queued_ns += max(record.sent_ns - member.enqueued_ns, 0)
            waits = whole.queue_waits(batch.model, member.enqueued_ns, record.sent_ns)
            work.waits_ns.update(waits)
    for request in whole.timed():
        # An ensemble's requests count for the ensemble, not for the models of its steps.
        own_work = models.get(request.model)
        if own_work is not None and request.attempts:
            early = whole.early_waits(request)
            own_work.waits_ns.update(early)
            own_work.time_ns += sum(early.values())
    for instance in whole.instances:
        models[instance.model].instances.append(instance)
    return [models[key] for key in sorted(models)]


def _losses(whole: Joined, lost: _Lost) -> Iterator[Statement]:
    for name, detail in lost.executors.items():
        yield _loss(
            "executor", name, detail, [b for b in whole.batches if b.record.executor == name]
        )
    for (executor, name), events in lost.instances.items():
        if executor in lost.executors:
            continue
        batches = [
            batch
            for batch in whole.batches
            if (batch.record.executor, batch.record.instance) == (executor, name)
        ]
        # A scheduler reports unloaded instances too. Only the executor knows a loss's reason.
        reason = events[0].detail if events[0].detail != executor else ""
        if reason or any(batch.record.error for batch in batches):
            yield _loss("instance", f"{name} of executor {executor}", reason, batches)


def _loss(kind: str, name: str, detail: str, batches: Iterable[Batch]) -> Statement:
    failed = [batch.record for batch in batches if batch.record.error]
    requests = sum(len(record.members) for record in failed)
    because = f" ({detail})" if detail else ""
    return Statement(
        f"{kind}-lost",
        f"{kind} {name} was lost{because}, with {_count(len(failed), 'batch')} of"
        f" {_count(requests, 'request')}",
        problem=True,
        advice="such requests are executed again if they may be; the executor's log, and the"
        " system's (out of memory?), say why it ended",
        figures={kind: name, "batches": len(failed), "requests": requests},
    )


def _failed_events(whole: Joined) -> Iterator[Statement]:
    for what, advice in (
        ("load failed", "`nereid check` and `nereid explain` say more"),
        ("scheduler takeover", "the log of the scheduler before says why it ended"),
    ):
        events = [(service, event) for service, event in whole.events if event.what == what]
        # Executors report each instance, schedulers each version. Prefer the schedulers' events.
        of_schedulers = [event for event in events if event[0].startswith("scheduler ")]
        for name, detail in {
            event.subject: event.detail for _, event in of_schedulers or events
        }.items():
            yield Statement(
                what.replace(" ", "-"),
                f"{what}: {name}{f' ({detail})' if detail else ''}",
                problem=True,
                advice=advice,
                figures={"subject": name},
            )


def _problems(work: _ModelWork, lost: _Lost) -> Iterator[Statement]:
    yield from _slow_copy(work)
    yield from _long_waits(work, lost)
    failed = [
        batch.record
        for batch in work.batches
        if batch.record.error
        and batch.record.executor not in lost.executors
        and (batch.record.executor, batch.record.instance) not in lost.instances
    ]
    if failed:
        yield Statement(
            "failed-batches",
            f"{work.name}: {_count(len(failed), 'batch')} of"
            f" {_count(sum(len(each.members) for each in failed), 'request')} failed:"
            f" {failed[0].error}",
            problem=True,
            version=work.model[1],
            figures={"model": work.model[0], "batches": len(failed)},
        )


class _Stall(NamedTuple):
    batch: Batch
    usual_ns: float
    work: _ModelWork

    @property
    def instance(self) -> tuple[str, str]:
        return self.batch.record.instance, self.batch.record.executor

    @property
    def span(self) -> tuple[int, int]:
        return self.batch.began_ns, self.batch.record.finished_ns

    @property
    def in_model(self) -> bool:
        return self.batch.executing or self.batch.phases[1] > _duration(self.batch) / 2

    @property
    def is_first(self) -> bool:
        return self.batch.record.number <= 1


def _stalls(models: Sequence[_ModelWork]) -> Iterator[Statement]:
    by_executor: dict[str, list[_Stall]] = {}
    for work in models:
        found, uneven = _stalls_of(work)
        if uneven is not None:
            yield uneven
        for stall in found:
            by_executor.setdefault(stall.instance[1], []).append(stall)
    for executor, stalls in by_executor.items():
        held_up, own = _shared(stalls)
        if held_up:
            yield _stalled_executor(executor, held_up)
        by_instance: dict[tuple[tuple[str, str], bool], list[_Stall]] = {}
        for stall in own:
            by_instance.setdefault((stall.instance, stall.is_first), []).append(stall)
        for (_, first), some in by_instance.items():
            yield _stalled_instance(some, first=first)


def _stalls_of(work: _ModelWork) -> tuple[list[_Stall], Statement | None]:
    """Return a model's stalls, or a statement that its execution times vary too much."""
    by_size: dict[int, list[int]] = {}
    for batch in work.executed:
        # The time of an execution depends on its size.
        by_size.setdefault(batch.record.size.bit_length(), []).append(_duration(batch))
    executed = [duration for some in by_size.values() for duration in some]
    if len(executed) < _FEWEST:
        return [], None
    of_all = median(executed)
    usual = {
        size: median(some) if len(some) >= _FEWEST else of_all for size, some in by_size.items()
    }
    long = [
        _Stall(batch, expected, work)
        for batch in chain(work.executed, work.executing)
        for expected in (usual.get(batch.record.size.bit_length(), of_all),)
        if _duration(batch) >= max(_STALL_NS, _STALL_TIMES * expected)
    ]
    long.sort(key=lambda stall: -_duration(stall.batch))
    every = sorted(chain(executed, map(_duration, work.executing)), reverse=True)
    most = max(int(len(every) * _STALL_SHARE), 1)
    for count in range(len(long), 0, -1):
        beyond = every[count] if count < len(every) else 0
        gap = _STALL_GAP if count == len(long) else _STALL_GAP_OF_SOME
        if count <= most and _duration(long[count - 1].batch) >= gap * beyond:
            return long[:count], None
    if not long:
        return [], None
    return [], Statement(
        "uneven-executions",
        f"{work.name}: {len(long)} of {len(every)} executions took at least {_STALL_TIMES} times"
        f" what is usual, up to {_ms(every[0])}: as inputs differ?",
        version=work.model[1],
        figures={"model": work.model[0], "executions": len(long), "most_ms": every[0] / _MS},
    )


def _shared(stalls: Sequence[_Stall]) -> tuple[list[_Stall], list[_Stall]]:
    """Return the stalls that the executor causes, and those of single instances.

    It is the executor if several instances stall together, or the time is outside the model.
    """
    groups: list[list[_Stall]] = []
    end = 0
    for stall in sorted(stalls, key=lambda stall: stall.span):
        if stall.is_first or stall.span[0] >= end:
            groups.append([])
        groups[-1].append(stall)
        end = 0 if stall.is_first else max(end, stall.span[1])
    held_up, own = [], []
    for group in groups:
        several = len({stall.instance for stall in group}) > 1
        if group[0].is_first or not (several or not any(stall.in_model for stall in group)):
            own += group
        elif max(_duration(stall.batch) for stall in group) >= _HELD_UP_NS:
            held_up += group
    return held_up, own


def _stalled_executor(executor: str, stalls: Sequence[_Stall]) -> Statement:
    took = Intervals(stall.span for stall in stalls).total
    instances = sorted({stall.instance[0] for stall in stalls})
    requests = sum(len(stall.batch.record.members) for stall in stalls)
    return Statement(
        "stalled-executor",
        f"executor {executor} was held up for {_ms(took)}: executions of {', '.join(instances)}"
        f" with {_count(requests, 'request')} took so long",
        problem=True,
        advice="its process or machine had too few cores, swapped, or was stopped; or its models"
        " waited for one thing",
        figures={
            "executor": executor,
            "instances": instances,
            "stalled_ms": took / _MS,
            "requests": requests,
        },
    )


def _stalled_instance(stalls: Sequence[_Stall], *, first: bool) -> Statement:
    (instance, executor), work = stalls[0].instance, stalls[0].work
    took = sum(_duration(stall.batch) for stall in stalls)
    spans = Intervals(stall.span for stall in stalls)
    requests = sum(
        bool(spans.within(member.enqueued_ns, batch.record.finished_ns))
        for batch in work.batches
        if (batch.record.instance, batch.record.executor) == (instance, executor)
        for member in batch.record.members
    )
    in_all = "" if len(stalls) == 1 else " in all"
    if any(stall.batch.executing for stall in stalls):
        in_all += " so far"
    return Statement(
        "slow-first-execution" if first else "stalled-instance",
        f"instance {instance} of executor {executor} stalled"
        f" {'in its first execution' if first else _times(len(stalls))}, for {_ms(took)}{in_all}"
        f" (an execution usually takes {_ms(stalls[0].usual_ns)});"
        f" {_count(requests, 'request')} in it or behind it",
        problem=True,
        advice="model_warmup lets loads pay for it, not a request"
        if first
        else "the model waited for something: a lock, a file, another service, a collection of"
        " garbage; or its machine was busy",
        version=work.model[1],
        figures={
            "model": work.model[0],
            "instance": instance,
            "executor": executor,
            "stalls": len(stalls),
            "stalled_ms": took / _MS,
            "usual_ms": stalls[0].usual_ns / _MS,
            "requests": requests,
        },
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _slow_copy(work: _ModelWork) -> Iterator[Statement]:
    executed = work.executed
    if len(executed) < _FEWEST:
        return
    copies = median([batch.phases[0] + batch.phases[2] for batch in executed])
    compute = median([batch.phases[1] for batch in executed])
    if copies < max(_COPY_NS, compute):
        return
    known = [batch.execution for batch in executed if batch.execution is not None]
    moved = sum(record.bytes_in + record.bytes_out for record in known) / (len(known) or 1)
    megabytes = f" of {moved / 1e6:.1f} MB" if moved >= _SHOWN_BYTES else ""
    yield Statement(
        "slow-copy",
        f"{work.name}: copying inputs and outputs{megabytes} takes {_ms(copies)} of an execution,"
        f" the model {_ms(compute)}",
        problem=True,
        advice="smaller types or tensors, or clients' shared memory, leave less to copy; outputs"
        " that are contiguous arrays are not copied again",
        version=work.model[1],
        figures={
            "model": work.model[0],
            "copy_ms": copies / _MS,
            "compute_ms": compute / _MS,
            "bytes": moved,
        },
    )


# Key: reason. Value: the problem's code, text and advice.
_WAIT_PROBLEMS: Final = {
    DELAY: (
        "delay-too-long",
        "for more requests while an instance was idle",
        "a shorter max_queue_delay_microseconds, or none, lets them go sooner",
    ),
    RATE_LIMITER: (
        "rate-limited",
        "for the rate limiter while an instance was idle",
        "more of the resource (--rate-limit-resource), or fewer of it for an execution",
    ),
    MEMORY: (
        "waits-for-memory",
        "for memory",
        "more memory, smaller batches, or fewer models on the device",
    ),
    LOADING: (
        "waits-for-loading",
        "for the model to be loaded",
        "load the model before its first request, and keep it loaded",
    ),
}


def _long_waits(work: _ModelWork, lost: _Lost) -> Iterator[Statement]:
    for reason, waited in work.waits_ns.items():
        code, text, advice = _WAIT_PROBLEMS.get(
            reason, (f"waits-for-{reason.replace(' ', '-')}", f"for {reason}", "")
        )
        mean, share = waited / work.requests, waited / (work.time_ns or 1)
        if work.requests < _WAIT_REQUESTS or mean < _WAIT_NS:
            continue
        if share < (_DELAY_SHARE if reason == DELAY else _WAIT_SHARE):
            continue
        idle = sum(instance.idle.total for instance in work.instances)
        held = sum(instance.to_ns - instance.from_ns for instance in work.instances)
        if reason == DELAY and idle < held / 2:
            # Busy instances make the delay useful: larger batches take less time per request.
            continue
        if reason == LOADING and (lost.executors or lost.instances):
            # The models are loaded again because of the loss, which is reported already.
            continue
        rows = sum(batch.record.size for batch in work.batches) / len(work.batches)
        yield Statement(
            code,
            f"{work.name}: a request waited {_ms(mean)} on average {text}, {share:.0%} of its time"
            f" ({rows:.1f} rows in a batch)",
            problem=True,
            advice=advice,
            version=work.model[1],
            figures={
                "model": work.model[0],
                "wait_ms": mean / _MS,
                "share": share,
                "mean_rows": rows,
            },
        )


def _saturated(work: _ModelWork, lost: _Lost) -> Iterator[Statement]:
    if work.requests < _WAIT_REQUESTS or lost.executors or lost.instances or _stalls_of(work)[0]:
        return
    held = sum(instance.to_ns - instance.from_ns for instance in work.instances)
    idle = sum(instance.idle.total for instance in work.instances)
    waited = work.queued_ns - work.waits_ns.total()
    mean, share = waited / work.requests, waited / (work.time_ns or 1)
    if idle > held * _SATURATED_IDLE or mean < _WAIT_NS or share < _SATURATED_SHARE:
        return
    count = len(work.instances)
    yield Statement(
        "saturated",
        f"{work.name}: {_count(count, 'instance')} had no capacity left, busy"
        f" {1 - idle / (held or 1):.0%} of the time: a request waited {_ms(mean)} on average for"
        f" one, {share:.0%} of its time",
        problem=True,
        advice="`nereid doctor` says what helps: batches, another instance, or another executor",
        version=work.model[1],
        figures={
            "model": work.model[0],
            "instances": count,
            "busy": 1 - idle / (held or 1),
            "wait_ms": mean / _MS,
            "share": share,
        },
    )


def _latencies(whole: Joined) -> Iterator[Statement]:
    """Yield the median and p99 of each model, the largest p99 first."""
    by_model: dict[Model, list[int]] = {}
    for request in whole.timed():
        by_model.setdefault(request.model, []).append(request.total_ns)
    figures = []
    for model, times in by_model.items():
        times.sort()
        beyond = max(int(len(times) * _SLOWEST), 1)
        figures.append((times[-beyond], median(times), len(times), model))
    for p99, p50, count, model in nlargest(_SHOWN_MODELS, figures):
        yield Statement(
            "p99-of-model",
            f"{model_name(model)}: p99 is {_ms(p99)}, the median {_ms(p50)}, of"
            f" {_count(count, 'request')}",
            version=model[1],
            figures={
                "model": model[0],
                "p50_ms": p50 / _MS,
                "p99_ms": p99 / _MS,
                "requests": count,
            },
        )


def _requests(whole: Joined) -> Iterator[Statement]:
    start, end = whole.span
    known = [request for request in whole.requests.values() if request.gateway is not None]
    outcomes = Counter(
        request.ended.outcome for request in whole.requests.values() if request.ended is not None
    )
    failed = Counter(
        record.gateway.status for record in known if record.gateway and record.gateway.status
    )
    text = f"{len(known)} requests and {len(whole.batches)} batches in {(end - start) / 1e9:.1f} s"
    if outcomes:
        text += "; without an execution: " + ", ".join(
            f"{count} {outcome}" for outcome, count in outcomes.most_common(5)
        )
    if failed:
        text += "; failed: " + ", ".join(
            f"{count} with status {status}" for status, count in failed.most_common()
        )
    yield Statement(
        "requests",
        text,
        figures={
            "requests": len(known),
            "batches": len(whole.batches),
            "seconds": (end - start) / 1e9,
            "failed": sum(failed.values()),
        },
    )


def _tail(whole: Joined) -> Iterator[Statement]:
    """Yield a statement that compares the steps of the slowest requests (p99) with usual steps."""
    requests = list(whole.timed())
    if not requests:
        return
    count = max(int(len(requests) * _SLOWEST), 1)
    slowest = nlargest(count, requests, key=_total)
    slow = _mean_steps(whole, slowest)
    usual = _mean_steps(whole, requests[:: len(requests) // _SAMPLE + 1])
    step = max(slow, key=lambda name: slow[name], default=QUEUE)
    total = sum(slow.values()) or 1.0
    p50, p99 = median(map(_total, requests)), slowest[-1].total_ns
    yield Statement(
        "p99",
        f"p99 is {_ms(p99)}, the median {_ms(p50)}: the slowest 1 % ({_count(count, 'request')})"
        f" spent {slow.get(step, 0.0) / total:.0%} of their time in the step '{step}',"
        f" {_ms(slow.get(step, 0.0))} ({_ms(usual.get(step, 0.0))} is usual)",
        figures={
            "p50_ms": p50 / _MS,
            "p99_ms": p99 / _MS,
            "step": step,
            "slowest_ms": {name: duration / _MS for name, duration in slow.items()},
            "usual_ms": {name: duration / _MS for name, duration in usual.items()},
        },
    )


def _mean_steps(whole: Joined, requests: Sequence[Request]) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for request in requests:
        for name, duration in whole.steps(request):
            sums[name] += duration
    return {name: total / len(requests) for name, total in sums.items()}


def _facts(
    whole: Joined, work: _ModelWork, max_batch_sizes: Mapping[Model, int]
) -> Iterator[Statement]:
    executed = work.executed
    if executed:
        yield _fill(work, max_batch_sizes.get(work.model, 0))
        copied_in = median([batch.phases[0] for batch in executed])
        inferred = median([batch.phases[1] for batch in executed])
        copied_out = median([batch.phases[2] for batch in executed])
        whole_ns = median([_duration(batch) for batch in executed])
        yield Statement(
            "copy-and-compute",
            f"{work.name}: of {_ms(whole_ns)} that an execution takes, inputs take"
            f" {_ms(copied_in)}, the model {_ms(inferred)}, outputs {_ms(copied_out)} (medians)",
            version=work.model[1],
            figures={
                "model": work.model[0],
                "execution_ms": whole_ns / _MS,
                "input_ms": copied_in / _MS,
                "infer_ms": inferred / _MS,
                "output_ms": copied_out / _MS,
            },
        )
    # Times at which a batch waited for its own instance. Other instances may have been idle.
    bound = Intervals(
        (
            min(
                (member.enqueued_ns for member in batch.record.members),
                default=batch.record.sent_ns,
            ),
            min(batch.record.sent_ns, batch.record.idle_since_ns or batch.record.sent_ns),
        )
        for batch in work.batches
    )
    idles = [(instance, _idle(whole, instance, bound)) for instance in work.instances]
    for instance, idle in idles[:_SHOWN]:
        held = instance.to_ns - instance.from_ns
        if held <= 0:
            continue
        reasons = ", ".join(
            f"{part / held:.0%} {name}"
            for name, part in sorted(idle.items(), key=lambda item: -item[1])
            if part >= held / 200
        )
        share = sum(idle.values()) / held
        yield Statement(
            "idle",
            f"{work.name}: instance {instance.name} of executor {instance.executor} was idle"
            f" {share:.0%} of {held / 1e9:.1f} s{f': {reasons}' if reasons else ''}",
            version=work.model[1],
            figures={
                "model": work.model[0],
                "instance": instance.name,
                "executor": instance.executor,
                "seconds": held / 1e9,
                "idle": share,
                "reasons": {name: part / held for name, part in idle.items() if part},
            },
        )
    if len(idles) > _SHOWN:
        held = sum(instance.to_ns - instance.from_ns for instance, _ in idles) or 1
        share = sum(sum(idle.values()) for _, idle in idles) / held
        yield Statement(
            "idle-all",
            f"{work.name}: all {len(idles)} instances were idle {share:.0%} of the time",
            version=work.model[1],
            figures={"model": work.model[0], "instances": len(idles), "idle": share},
        )


def _fill(work: _ModelWork, most: int) -> Statement:
    sizes = [batch.record.size for batch in work.executed]
    mean, largest = sum(sizes) / len(sizes), max(sizes)
    against = f"{mean / most:.0%} of max_batch_size {most}" if most else f"the largest {largest}"
    return Statement(
        "batch-fill",
        f"{work.name}: {len(sizes)} batches of {mean:.1f} rows on average, {against}",
        version=work.model[1],
        figures={
            "model": work.model[0],
            "batches": len(sizes),
            "mean_rows": mean,
            "largest": largest,
            **({"max_batch_size": most, "fill": mean / most} if most else {}),
        },
    )


def _idle(whole: Joined, instance: Instance, bound: Intervals) -> dict[str, int]:
    """Map a reason to the nanoseconds for which an instance was idle because of it."""
    idle, parts = instance.idle, {}
    reasons = {
        **{f"waiting for {name}": spans for name, spans in _waited(whole, instance.model)},
        f"waiting for {ANOTHER}": bound,
    }
    for reason, spans in reasons.items():
        parts[reason] = idle.common(spans).total
        idle = idle.common(spans.gaps(instance.from_ns, instance.to_ns))
    return {**parts, NOTHING: idle.total}


def _waited(whole: Joined, model: Model) -> Iterator[tuple[str, Intervals]]:
    for reason, spans in whole.waited.get(model, {}).items():
        yield reason if reason in (DELAY, MEMORY, LOADING) else f"the {reason}", spans


def _incomplete(whole: Joined) -> Iterator[Statement]:
    for text in whole.missing:
        yield Statement("missing-service", f"{text}: less can be said", figures={"service": text})
    for service in whole.services:
        if service.error_ns > _MS:
            yield Statement(
                "clock",
                f"the clock of {service.kind} {service.name} may be off by {_ms(service.error_ns)}",
                figures={"service": service.name, "error_ms": service.error_ns / _MS},
            )


def _slowest(whole: Joined) -> list[SlowRequest]:
    return [described(whole, request) for request in nlargest(_SHOWN, whole.timed(), key=_total)]


def described(whole: Joined, request: Request) -> SlowRequest:
    """Return a request and its steps as a SlowRequest."""
    gateway = request.gateway
    return SlowRequest(
        request.number,
        "" if gateway is None else gateway.request_id,
        "" if gateway is None else gateway.trace_id,
        *request.model,
        request.total_ns,
        len(request.attempts),
        whole.steps(request),
    )


def request_summary(whole: Joined, number: int) -> Summary:
    """Return the summary of one request from the result of within_lifetime()."""
    request = whole.requests[number]
    statements = [_execution(batch, member) for batch, member in request.attempts]
    if request.ended is not None:
        outcome = request.ended.outcome
        statements.append(
            Statement("ended", f"ended at its scheduler: {outcome}", figures={"outcome": outcome})
        )
    if request.gateway is not None and request.gateway.status:
        status = request.gateway.status
        statements.append(
            Statement(
                "failed",
                f"its client got gRPC status {status}",
                problem=True,
                figures={"status": status},
            )
        )
    statements += _incomplete(whole)
    return Summary(statements, [described(whole, request)])


def _execution(batch: Batch, member: Member) -> Statement:
    record = batch.record
    queued, executed = record.sent_ns - member.enqueued_ns, _duration(batch)
    return Statement(
        "batch",
        f"{'failed' if record.error else 'executed'} in batch {record.number} of instance"
        f" {record.instance} of executor {record.executor}:"
        f" {_count(len(record.members), 'request')}, {_count(record.size, 'row')}, sent after"
        f" {_ms(queued)} in the queue, {_ms(executed)} at the instance"
        f"{f' ({record.error})' if record.error else ''}",
        problem=bool(record.error),
        version=record.version,
        figures={
            "model": record.model,
            "instance": record.instance,
            "executor": record.executor,
            "number": record.number,
            "requests": len(record.members),
            "rows": record.size,
            "queue_ms": queued / _MS,
            "execution_ms": executed / _MS,
        },
    )


def _total(request: Request) -> int:
    return request.total_ns


def _duration(batch: Batch) -> int:
    return batch.record.finished_ns - batch.began_ns


def _count(count: int, of: str) -> str:
    plural = "es" if of.endswith("ch") else "s"
    return f"{count} {of}{'' if count == 1 else plural}"


def _ms(ns: float) -> str:
    if ns >= 1_000 * _MS:
        return f"{ns / 1e9:.2f} s"
    return f"{ns / _MS:.2f} ms" if ns >= _MS / 10 else f"{ns / 1_000:.0f} us"
