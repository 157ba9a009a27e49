"""Requests that are sent again: by the response of their first run, once more, or not at all."""

import asyncio
import time
from typing import Any

import pytest

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import Cancel, InferResponse, MovedResponse
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.admission.gateway_session import GatewaySession
from nereid_scheduler.core.models.dependencies import step_request_id
from nereid_scheduler.core.requests.entry import Entry, RequestState
from nereid_scheduler.placement.executors.sessions import Session
from nereid_scheduler.versions.reruns.first_runs import FirstRuns
from tests.support.scheduler.world import (
    AdmissionWorld,
    CommandStream,
    ResponseLink,
    request,
    served_version,
)
from tests.support.waiting import until

ABORTED = (
    "the connection to an executor or a scheduler was lost; the request may have run, and model "
    "'m' runs requests at most once"
)


class Commands(CommandStream):
    def __init__(self) -> None:
        super().__init__()
        self.recalled: list[int] = []
        # Of the last query what was begun for a lost scheduler.
        self.query = 0

    def send(self, message: bytes, at_once: bool = False) -> None:
        command = pb.ExecutorCommand.FromString(message)
        if command.HasField("recall"):
            self.recalled.append(command.recall.request)
        else:
            assert command.report_begun.scheduler == "lost"
            self.query = command.report_begun.query


class World(AdmissionWorld):
    """A scheduler that has just started, and executors that come back."""

    def __init__(self, *, at_most_once: bool = False, grace_s: float = 60, **fields: Any) -> None:
        self.first_runs = FirstRuns(grace_s)
        self.sessions: list[Session] = []
        served = served_version(state="loading")
        if at_most_once:
            served.draft.parameters["at_most_once"].string_value = "true"
        super().__init__(served=served, first_runs=self.first_runs, **fields)

    def join(self, *begun: int) -> tuple[Session, Commands]:
        commands = Commands()
        session = Session(pb.Hello(name="one", begun_requests=begun), commands)
        self.sessions.append(session)
        self.first_runs.executor_joined(session)
        return session, commands

    def report(self, request_id: int, head: bytes | None) -> None:
        """Of the executor that joined first."""
        response = None if head is None else pb.InferResponse(head=head)
        recalled = pb.Recalled(request=request_id, response=response)
        self.first_runs.on_recalled(self.sessions[0], recalled)

    def report_begun(self, session: Session, commands: Commands, *begun: int) -> None:
        """As it was asked."""
        report = pb.BegunRequests(ids=begun, query=commands.query)
        self.first_runs.executor_reported(session, report)

    def resend(self, request_id: int = 1, **fields: Any) -> None:
        self.gateway.on_items([request(request_id, resent=True, **fields)])

    def responses(self) -> list[tuple[int, bytes]]:
        return [(each.id, each.head) for each in self.link.sent]


@pytest.mark.parametrize("joins_first", [True, False])
async def test_the_response_of_the_first_run_is_delivered(joins_first: bool) -> None:
    it = World()
    if joins_first:
        _, commands = it.join(1, 2)
        it.resend()
    else:
        it.resend()
        _, commands = it.join(1, 2)
    assert commands.recalled == [1]
    assert it.gateway.pending == 1
    it.report(1, b"head")
    assert it.responses() == [(1, b"head")]
    assert it.gateway.pending == 0


async def test_a_request_without_a_first_run_is_queued_after_the_grace_period() -> None:
    it = World(grace_s=0.3)
    model = it.ready()
    it.resend()
    assert model.dispatcher.pending == 0
    await until(lambda: model.dispatcher.pending)
    # From then on at once.
    it.resend(2)
    assert model.dispatcher.pending == 2
    model.fail_all(Unavailable("over"))
    assert it.errors() == [(1, "over"), (2, "over")]


@pytest.mark.parametrize("how", ["none", "left"])
async def test_a_first_run_without_a_response_is_repeated(how: str) -> None:
    it = World()
    model = it.ready()
    session, _ = it.join(1)
    it.resend()
    if how == "none":
        it.report(1, None)
    else:
        it.first_runs.executor_left(session)
    assert model.dispatcher.pending == 1


async def test_but_not_for_a_model_that_runs_requests_at_most_once() -> None:
    it = World(at_most_once=True)
    model = it.ready()
    it.join(1)
    it.resend()
    it.report(1, None)
    assert it.errors() == [(1, ABORTED)]
    assert model.dispatcher.pending == 0
    model.close()
    # Nobody has it, after the grace period.
    it = World(at_most_once=True, grace_s=0)
    it.ready().close()
    it.resend()
    assert it.errors() == [(1, ABORTED)]
    # Requests that were not sent before run.
    model = it.ready()
    it.gateway.on_items([request(2)])
    assert model.dispatcher.pending == 1


async def test_nor_for_one_whose_configuration_comes_while_the_request_waits() -> None:
    it = World()
    it.join(1)
    it.resend()
    # The scheduler takes the model over.
    it.served.draft.parameters["at_most_once"].string_value = "true"
    it.ready().close()
    it.report(1, None)
    assert it.errors() == [(1, ABORTED)]


async def test_a_request_that_waits_for_its_first_run_can_be_cancelled() -> None:
    it = World()
    it.join(1)
    it.resend()
    it.gateway.on_items([Cancel(1)])
    it.report(1, b"head")
    assert it.responses() == []
    assert it.gateway.pending == 0


async def test_and_fails_at_its_deadline() -> None:
    it = World()
    it.join(1)
    it.resend(deadline=time.monotonic() + 0.2)
    await until(it.errors)
    assert it.errors() == [(1, "the deadline passed while the request was running")]
    it.report(1, b"head")
    assert len(it.responses()) == 1


@pytest.mark.parametrize("at_most_once", [False, True])
async def test_a_scheduler_that_stops_returns_what_waits(at_most_once: bool) -> None:
    it = World(at_most_once=at_most_once)
    it.resend()
    it.resend(2, caller=7)
    it.admission.stop()
    (returned, *others) = it.link.sent
    assert isinstance(returned, MovedResponse)
    assert returned.id == 1
    # Its caller knows no other scheduler, or is about to end.
    assert [each.id for each in others] == ([2] if at_most_once else [])


class Back:
    """The same gateway, on a new link."""

    def __init__(self, it: AdmissionWorld) -> None:
        self.link = ResponseLink()
        self.session = GatewaySession(it.admission)
        self.session.link = self.link


def executing(it: AdmissionWorld) -> Any:
    """One request of the gateway's that an instance executes."""
    it.gateway.on_items([request(1)])
    (entry,) = it.gateway._pending.values()
    return entry


@pytest.mark.parametrize("ends_first", [True, False])
async def test_a_gateway_that_is_back_gets_the_response_of_what_ran_meanwhile(
    ends_first: bool,
) -> None:
    it = AdmissionWorld()
    model = it.ready()
    entry = executing(it)
    run(model, entry)
    it.gateway.on_down()
    assert len(it.admission.orphans) == 1
    back = Back(it)
    if ends_first:
        end(model, entry)
    back.session.on_items([request(1, resent=True)])
    if not ends_first:
        assert back.session.pending == 1
        end(model, entry)
    await asyncio.sleep(0)
    assert [(each.id, each.head) for each in back.link.sent] == [(1, b"done")]
    assert back.session.pending == len(it.admission.orphans) == 0
    assert it.link.sent == []


async def test_what_runs_for_a_models_call_is_cancelled_with_its_link() -> None:
    it = AdmissionWorld()
    model = it.ready()
    calling = GatewaySession(it.admission, for_models=True)
    calling.link = ResponseLink()
    calling.on_items([request(1)])
    (entry,) = calling._pending.values()
    assert isinstance(entry, Entry)
    run(model, entry)
    calling.on_down()
    assert entry.state is RequestState.RESPONDED
    assert len(it.admission.orphans) == 0


async def test_what_is_only_queued_is_cancelled_with_its_link() -> None:
    it = AdmissionWorld()
    model = it.ready()
    executing(it)
    it.gateway.on_down()
    assert model.dispatcher.pending == len(it.admission.orphans) == 0


def run(model: Any, entry: Any) -> None:
    """An instance takes the entry's batch."""
    batch = model.pool.batcher.next_batch(time.monotonic_ns(), 1)
    assert batch.entries == [entry]


def end(model: Any, entry: Any) -> None:
    model.requests.end_entry(entry, InferResponse(0, b"done"))


async def test_an_ensemble_waits_for_the_runs_of_its_steps() -> None:
    it = World(grace_s=0.3)
    model = it.ready()
    inner = it.served.draft.ensemble_scheduling.step
    inner.add(model_name="a")
    inner.add(model_name="b")
    own, first, second = 1, step_request_id(1, 0), step_request_id(1, 1)
    assert it.catalogue.run_ids("m", "", own) == {own, first, second}
    _, commands = it.join(second, first)
    it.resend()
    # Its own run is not named: executors know only the steps.
    await until(lambda: it.first_runs.recalls.wake_at_s is None)
    assert sorted(commands.recalled) == sorted((first, second))
    it.report(second, b"head")
    assert model.dispatcher.pending == 0
    it.report(first, None)
    assert model.dispatcher.pending == 1


@pytest.mark.parametrize("has_response", [True, False])
async def test_an_executor_may_join_with_the_first_run_while_the_model_is_loaded(
    has_response: bool,
) -> None:
    it = World(grace_s=0)
    it.resend()
    assert len(it.load_queue) == 1
    _, commands = it.join(1)
    model = it.ready()
    await asyncio.sleep(0)
    assert commands.recalled == [1]
    assert model.dispatcher.pending == 0
    it.report(1, b"head" if has_response else None)
    assert it.responses() == ([(1, b"head")] if has_response else [])
    assert model.dispatcher.pending == (0 if has_response else 1)


async def test_an_executor_that_is_lost_as_well_reports_nothing() -> None:
    it = World(grace_s=0)
    model = it.ready()
    (one, commands), (other, _) = it.join(), it.join()
    it.first_runs.begin_takeover(["lost"])
    it.resend()
    it.report_begun(one, commands)
    assert model.dispatcher.pending == 0
    it.first_runs.executor_left(other)
    assert model.dispatcher.pending == 1


async def test_a_gateway_may_be_back_before_the_end_of_its_link_is_seen() -> None:
    it = AdmissionWorld()
    model = it.ready()
    entry = executing(it)
    run(model, entry)
    it.gateway.on_items([request(2)])
    back = Back(it)
    back.session.on_items([request(1, resent=True), request(2, resent=True)])
    # What was on its way over the old link.
    it.gateway.on_items([request(3)])
    it.gateway.on_down()
    assert [each.request.id for each in model.requests.entries] == [1, 2]
    end(model, entry)
    assert [(each.id, each.head) for each in back.link.sent] == [(1, b"done")]
    assert it.link.sent == []


async def test_what_a_disconnected_gateway_does_not_claim_is_cancelled() -> None:
    it = AdmissionWorld(orphan_limit_s=0)
    model = it.ready()
    entry = executing(it)
    run(model, entry)
    it.gateway.on_down()
    back = Back(it)
    back.session.on_items([request(1, resent=True)])
    # Nobody claims it once more.
    back.session.on_down()
    await until(lambda: not len(it.admission.orphans))
    assert not model.requests.entries


class Waiter:
    """Of no request."""

    def on_first_run(self, response: InferResponse | None) -> None:
        """Do nothing."""


async def test_the_grace_period_begins_when_executors_can_join() -> None:
    first_runs = FirstRuns(0.05)
    await until(lambda: not first_runs.find(Waiter(), 1, {1}))
    first_runs.restart_grace()
    assert first_runs.find(Waiter(), 2, {2})
    first_runs.end_waits()
