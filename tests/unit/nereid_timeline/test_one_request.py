"""What is left of a timeline around one request."""

from __future__ import annotations

import pytest

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
from nereid_timeline.joined import Joined, joined
from nereid_timeline.of_models import of_models
from nereid_timeline.one_request import lifetime, within_lifetime
from nereid_timeline.summary import request_summary


def batch(number: int, model: str, start: int, *members: int, error: str = "") -> BatchRecord:
    """One that was enqueued 10 before it was sent, and took 20."""
    return BatchRecord(
        model, "1", f"{model}_0", "e", number, len(members),
        tuple(Member(each, start - 15, start - 10, 0) for each in members),
        start - 20, start, start, start + 20, 5, 10, 5, error,
    )  # fmt: skip


def execution(number: int, model: str, start: int) -> ExecutionRecord:
    return ExecutionRecord(model, "1", f"{model}_0", number, 1, start, start, start, start, start)


def request(number: int, start: int, end: int, status: int = 0) -> GatewayRequest:
    return GatewayRequest(number, "m", "1", "grpc", f"r{number}", "", start, end, status)


def mesh(*more: Record) -> Joined:
    """Request 1 has a batch with 2; batch 1 was before it, 3 is of another model, 4 comes after."""
    scheduler: list[Record] = [
        batch(1, "m", 50, 3),
        batch(2, "m", 110, 1, 2),
        batch(3, "other", 110, 4),
        batch(4, "m", 200, 5),
        batch(5, "m", 118, 6),
        EndedRequest(7, "m", "1", 105, 106, 107, "cancelled", 1),
        EndedRequest(8, "m", "1", 205, 206, 207, "cancelled", 1),
        Wait("m", "1", "delay", 100, 110, 1),
        Wait("other", "1", "delay", 100, 110, 1),
        Event("load", "x", 20, 30, ""),
        Event("instance lost", "x", 120, 0, ""),
        *more,
    ]
    gateway: list[Record] = [request(1, 90, 140), request(2, 92, 141), request(3, 30, 75)]
    executor: list[Record] = [
        execution(2, "m", 112), execution(90, "m", 113), execution(91, "m", 300),
    ]  # fmt: skip
    services = {"gateway": gateway, "scheduler": scheduler, "executor": executor}
    return joined(
        Timeline(services=[
            ServiceTimeline(kind, kind[0], 0, 0, 10, 400, records)
            for kind, records in services.items()
        ])
    )  # fmt: skip


def test_what_its_batch_queue_and_instance_did_meanwhile() -> None:
    left = within_lifetime(mesh(), 1)
    # The fifth waited behind its batch.
    assert [each.record.number for each in left.batches] == [2, 5]
    assert set(left.requests) == {1, 2, 6, 7}
    assert [each.gateway.number for each in left.by_gateway["gateway g"] if each.gateway] == [1, 2]
    assert [each.number for _, each in left.ended] == [7]
    assert [each.model for _, each in left.waits] == ["m"]
    assert [each.what for _, each in left.events] == ["instance lost"]
    assert [each.number for each in left.alone["executor e"]] == [90]
    assert [each.model for each in left.instances] == [("m", "1")]


def test_it_is_said_step_by_step() -> None:
    summary = request_summary(within_lifetime(mesh(), 1), 1)
    (slow,) = summary.slowest
    assert slow.request_id == "r1"
    assert sum(part for _, part in slow.steps) == slow.total_ns == 50
    assert not summary.problems
    (said,) = summary.statements
    assert said.text.startswith("executed in batch 2 of instance m_0 of executor e: 2 requests")


def test_an_execution_that_failed_and_a_request_without_one() -> None:
    again = batch(6, "m", 160, 9, error="executor lost"), batch(7, "m", 190, 9)
    summary = request_summary(within_lifetime(mesh(*again), 9), 9)
    assert [each.problem for each in summary.statements] == [True, False]
    assert "failed in batch 6" in summary.statements[0].text
    assert lifetime(mesh(*again).requests[9]) == (145, 210)
    cancelled = request_summary(within_lifetime(mesh(), 7), 7)
    assert [each.code for each in cancelled.statements] == ["ended"]
    assert lifetime(mesh().requests[7]) == (105, 107)


def test_a_request_that_failed_at_the_gateway() -> None:
    whole = mesh()
    whole.requests[1].gateway = request(1, 90, 140, status=14)
    assert [each.code for each in request_summary(within_lifetime(whole, 1), 1).statements] == [
        "batch",
        "failed",
    ]


def test_a_number_that_is_unknown() -> None:
    with pytest.raises(KeyError):
        within_lifetime(mesh(), 99)


def test_the_part_of_some_models() -> None:
    whole = mesh()
    part = of_models(whole, frozenset({"other"}))
    assert [each.record.number for each in part.batches] == [3]
    assert all(
        request.model[0] == "other" or {batch.model[0] for batch, _ in request.attempts} & {"other"}
        for request in part.requests.values()
    )
    assert set(part.requests) < set(whole.requests)
    assert not part.ended
    assert {instance.model[0] for instance in part.instances} <= {"other"}
    both = of_models(whole, frozenset({"m", "other"}))
    assert len(both.batches) == len(whole.batches)
