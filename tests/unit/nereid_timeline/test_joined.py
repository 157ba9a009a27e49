"""What is put together of records, also where some are missing."""

from __future__ import annotations

from dataclasses import replace

from nereid.timeline.records import (
    BatchRecord,
    EndedRequest,
    Event,
    ExecutionRecord,
    GatewayRequest,
    Member,
    Record,
    ServiceTimeline,
    Timeline,
    Wait,
)
from nereid_timeline.joined import Joined, joined, latest
from tests.support.scripted_timeline import MS, START, Load, S, scripted

_GATEWAY = GatewayRequest(7, "m", "", "grpc", "r", "", 100, 210, 0)
_MEMBER = Member(7, 115, 120, 0)
_BATCH = BatchRecord("m", "1", "m_0", "e", 3, 1, (_MEMBER,), 90, 140, 140, 190, 5, 20, 5)
_EXECUTION = ExecutionRecord("m", "1", "m_0", 3, 1, 145, 150, 170, 175, 185)


def of(**services: list[Record]) -> Joined:
    return joined(
        Timeline(services=[ServiceTimeline(kind, kind[0], 0, 0, 50, 250, records)
                           for kind, records in services.items()])
    )  # fmt: skip


def test_the_steps_of_a_request() -> None:
    wait = Wait("m", "1", "delay", 125, 135, 1)
    whole = of(gateway=[_GATEWAY], scheduler=[_BATCH, wait], executor=[_EXECUTION])
    request = whole.requests[7]
    assert list(whole.timed()) == [request]
    assert request.model == ("m", "1")
    assert whole.steps(request) == [
        ("gateway", 15), ("admission", 5), ("queue", 10),
        ("wait for delay", 10), ("to executor", 5), ("input copy", 5),
        ("compute", 20), ("output copy", 5), ("executor reply", 10), ("from executor", 5),
        ("gateway reply", 20),
    ]  # fmt: skip
    assert request.total_ns == 110


def test_what_a_request_waits_for_before_it_is_queued() -> None:
    waits = [
        Wait("m", "1", "loading", 103, 114, 1),
        # Of any version. Part of the load's time, and again when all instances are lost.
        Wait("m", "", "memory", 104, 110, 1),
        Wait("m", "1", "loading", 125, 135, 1),
        Wait("m", "", "memory", 130, 133, 1),
        # What others wait for in the queue.
        Wait("m", "1", "delay", 101, 112, 1),
        Wait("n", "", "memory", 101, 112, 1),
    ]
    whole = of(gateway=[_GATEWAY], scheduler=[_BATCH, *waits], executor=[_EXECUTION])
    assert whole.steps(whole.requests[7])[:7] == [
        ("gateway", 4), ("wait for loading", 5), ("wait for memory", 6), ("admission", 5),
        ("queue", 10), ("wait for loading", 7), ("wait for memory", 3),
    ]  # fmt: skip
    assert sum(part for _, part in whole.steps(whole.requests[7])) == 110


def test_requests_that_wait_for_a_load_and_are_not_executed() -> None:
    wait = Wait("m", "", "loading", 103, 200, 1)
    refused = of(gateway=[_GATEWAY], scheduler=[wait])
    assert refused.steps(refused.requests[7]) == [("scheduler", 13), ("wait for loading", 97)]
    ended = EndedRequest(7, "m", "1", 201, 201, 205, "cancelled", 1)
    cancelled = of(gateway=[_GATEWAY], scheduler=[wait, ended])
    assert cancelled.steps(cancelled.requests[7]) == [
        ("gateway", 4), ("wait for loading", 97), ("queue", 4), ("gateway reply", 5)
    ]  # fmt: skip


def test_without_the_executor_its_reported_times_are_taken() -> None:
    whole = of(gateway=[_GATEWAY], scheduler=[_BATCH])
    steps = dict(whole.steps(whole.requests[7]))
    assert (steps["input copy"], steps["compute"], steps["output copy"]) == (5, 20, 5)
    assert sum(steps.values()) == 110
    assert whole.batches[0].phases == (5, 20, 5)


def test_services_of_several_kinds_may_have_one_name() -> None:
    whole = joined(
        Timeline(
            services=[
                ServiceTimeline("gateway", "host", 0, 0, 10, 250, [_GATEWAY]),
                ServiceTimeline("scheduler", "host", 0, 0, 50, 250, [_BATCH]),
            ]
        )
    )
    assert list(whole.by_gateway) == ["gateway host"]
    assert whole.instances[0].from_ns == 50


def test_halves_whose_others_were_cut_off() -> None:
    whole = of(gateway=[_GATEWAY], executor=[_EXECUTION])
    assert whole.steps(whole.requests[7]) == [
        ("scheduler", 110)
    ]  # fmt: skip
    assert list(whole.timed()) == [whole.requests[7]]
    assert whole.alone == {"executor e": [_EXECUTION]}
    assert whole.instances == []
    alone = of(scheduler=[_BATCH])
    assert sum(part for _, part in alone.steps(alone.requests[7])) == 190 - 115
    assert list(alone.timed()) == []
    assert of().span == (0, 0)


def test_a_request_before_the_records_of_its_scheduler() -> None:
    services = [
        ServiceTimeline("gateway", "g", 0, 0, 50, 250, [_GATEWAY]),
        ServiceTimeline("scheduler", "s", 0, 0, 150, 250),
    ]
    assert list(joined(Timeline(services=services)).timed()) == []


def test_a_request_that_is_executed_again() -> None:
    lost = _BATCH._replace(instance="m_1", sent_ns=122, started_ns=122, finished_ns=130, error="x")
    again = _BATCH._replace(members=(_MEMBER._replace(enqueued_ns=131, retries=1),))
    whole = of(gateway=[_GATEWAY], scheduler=[again, lost], executor=[_EXECUTION])
    steps = whole.steps(whole.requests[7])
    assert len(whole.requests[7].attempts) == 2
    assert steps[2:6] == [
        ("queue", 2), ("failed execution", 8), ("between steps", 1), ("queue", 9)
    ]  # fmt: skip
    assert sum(part for _, part in steps) == 110


def test_an_ensemble_is_the_model_of_its_request() -> None:
    second = _BATCH._replace(
        model="n", instance="n_0", number=1, members=(Member(7, 115, 191, 0),), sent_ns=192,
        started_ns=192, finished_ns=195,
    )  # fmt: skip
    ended = EndedRequest(7, "both", "1", 115, 116, 197, "ensemble", 0)
    whole = of(gateway=[_GATEWAY], scheduler=[_BATCH, second, ended], executor=[_EXECUTION])
    request = whole.requests[7]
    assert request.model == ("both", "1")
    names = [name for name, _ in whole.steps(request)]
    assert names.count("queue") == 2
    assert sum(part for _, part in whole.steps(request)) == 110


def test_slots_without_a_request_are_no_requests() -> None:
    batch = _BATCH._replace(members=(_MEMBER, Member(0, 0, 130, 0)))
    assert list(of(scheduler=[batch]).requests) == [7]


def test_clocks_are_aligned() -> None:
    timeline = scripted(Load(rate=100), seconds=1)
    straight = joined(scripted(Load(rate=100), seconds=1))
    for service in timeline.services:
        if service.kind != "executor":
            continue
        shift = 3 * S
        service.offset_ns = -shift
        service.from_ns, service.to_ns = service.from_ns + shift, service.to_ns + shift
        service.records = [
            each._replace(**{
                name: getattr(each, name) + shift for name in each._fields if name.endswith("_ns")
            })
            for each in service.records
        ]  # fmt: skip
    assert joined(timeline).batches == straight.batches


def test_times_of_batches_are_aligned_and_their_durations_kept() -> None:
    service = ServiceTimeline("scheduler", "s", 1000, 0, 50, 250, [_BATCH])
    (batch,) = joined(Timeline(services=[service])).batches
    assert batch.record.sent_ns == 1140
    assert batch.record.infer_ns == 20
    assert batch.record.members[0].enqueued_ns == 1120
    assert (service.from_ns, service.offset_ns) == (1050, 0)


def test_numbers_that_begin_again_find_their_own_execution() -> None:
    shift = 1000
    later = _BATCH._replace(sent_ns=1140, started_ns=1140, finished_ns=1190, members=())
    other = ExecutionRecord("m", "1", "m_0", 3, 1, *(each + shift for each in _EXECUTION[5:10]))
    whole = of(scheduler=[later, _BATCH], executor=[other, _EXECUTION])
    assert [each.execution for each in whole.batches] == [_EXECUTION, other]


def test_an_instance_is_idle_between_its_executors_coming_and_loss() -> None:
    records: list[Record] = [
        _BATCH,
        Event("executor joined", "e", 100, 0, ""),
        Event("executor lost", "e", 200, 0, ""),
    ]
    (instance,) = of(scheduler=records).instances
    assert (instance.from_ns, instance.to_ns) == (100, 200)
    assert list(instance.busy) == [(140, 190)]
    assert list(instance.idle) == [(100, 140), (190, 200)]


def test_the_last_part() -> None:
    timeline = scripted(Load(rate=100), seconds=2)
    before = {each.name: len(each.records) for each in timeline.services}
    latest(timeline, S // 2)
    for service in timeline.services:
        assert service.from_ns == START + 2 * S - S // 2
        assert 0.15 < len(service.records) / before[service.name] < 0.35
    event = Event("load", "m", 10, 0, "")
    batch = replace(timeline, services=[ServiceTimeline("s", "s", 0, 0, 0, 20, [event])])
    latest(batch, 5)
    assert batch.services[0].records == []
    latest(timeline, 10 * MS)
    assert all(len(each.records) < 10 for each in timeline.services)
