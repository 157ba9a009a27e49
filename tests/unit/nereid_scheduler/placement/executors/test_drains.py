"""Executors that are asked to leave, and what they do then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nereid.core.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
    Unimplemented,
)
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.placement.executors.drains import Drains, last_of
from nereid_scheduler.placement.executors.sessions import Session
from tests.support.scheduler.world import CommandStream, joined
from tests.support.waiting import until

ASK = pb.DrainExecutorRequest(name="one", allow_last=True)


def facts_of(**models: list[str]) -> pb.FactsResponse:
    """Executors, and the models that each has ready."""
    facts = pb.FactsResponse()
    for name, hosted in models.items():
        executor = facts.executors.add(name=name)
        for model in hosted:
            executor.hosted.add(model=model, version=1, instances=1)
        executor.hosted.add(model="loading", version=1)
    return facts


def drains_of(*sessions: Session, facts: pb.FactsResponse | None = None, **options: Any) -> Drains:
    async def mesh_facts() -> pb.FactsResponse:
        return facts or pb.FactsResponse()

    return Drains(lambda: sessions, mesh_facts, **{"for_all": True, **options})


def drainable(name: str = "one", *, drains: bool = True) -> tuple[Session, CommandStream]:
    return joined(name, drains=drains)


async def test_callers_share_one_command_and_wait_for_the_executor() -> None:
    session, stream = drainable()
    drains = drains_of(session)
    calls = [asyncio.ensure_future(drains.drain(ASK)) for _ in range(2)]
    await until(lambda: stream.sent)
    assert not any(call.done() for call in calls)
    session.leaving = True
    drains.on_left(session)
    await asyncio.gather(*calls)
    assert stream.sent == [pb.ExecutorCommand(drain=pb.Drain())]


async def test_an_unknown_executor_is_not_found() -> None:
    drains = drains_of(drainable()[0])
    with pytest.raises(NotFound, match="no executor 'none' has joined"):
        await drains.drain(pb.DrainExecutorRequest(name="none"))


async def test_an_older_release_is_named() -> None:
    session, stream = drainable(drains=False)
    with pytest.raises(Unimplemented, match=r"of an older release.*SIGTERM"):
        await drains_of(session).drain(ASK)
    assert not stream.sent


async def test_an_executor_that_is_lost_first_is_no_success() -> None:
    session, stream = drainable()
    drains = drains_of(session)
    call = asyncio.ensure_future(drains.drain(ASK))
    await until(lambda: stream.sent)
    drains.on_left(session)
    with pytest.raises(Unavailable, match="was lost before it left"):
        await call


async def test_an_executor_that_hangs_is_waited_for_so_long_and_asked_once() -> None:
    session, stream = drainable()
    drains = drains_of(session, confirm_limit_s=0.01)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"not confirmed within 0.01 s"):
            await drains.drain(ASK)
    assert len(stream.sent) == 1


async def test_a_client_that_may_not_load_models_may_not_drain() -> None:
    session, stream = drainable()
    drains = drains_of(session, for_all=False)
    with pytest.raises(PermissionDenied, match="--model-control-mode=explicit"):
        await drains.drain(ASK)
    assert not stream.sent
    asking = pb.DrainExecutorRequest(name="one", allow_last=True, authorized=True)
    call = asyncio.ensure_future(drains.drain(asking))
    await until(lambda: stream.sent)
    session.leaving = True
    drains.on_left(session)
    await call


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (facts_of(one=[]), "the mesh"),
        (facts_of(one=["a"], two=["a"]), ""),
        (facts_of(one=["a", "b"], two=["b"], three=["c"]), "model 'a'"),
        (facts_of(one=list("gfedcba"), two=[]), "model 'a', 'b', 'c', 'd', 'e' and 2 others"),
    ],
)
async def test_the_last_one_is_drained_only_if_the_call_says_so(
    facts: pb.FactsResponse, reason: str
) -> None:
    assert last_of(facts, "one", ["one", "two", "three"]) == reason
    session, stream = drainable()
    others = [drainable(name)[0] for name in ("two", "three")]
    drains = drains_of(session, *others, facts=facts, confirm_limit_s=0.01)
    asking = drains.drain(pb.DrainExecutorRequest(name="one"))
    if reason:
        with pytest.raises(InvalidArgument, match=f"last one of {reason}.*allow_last=true"):
            await asking
        assert not stream.sent
    else:
        with pytest.raises(Unavailable, match="not confirmed"):
            await asking
        assert stream.sent


async def test_those_that_leave_or_are_not_here_are_not_counted() -> None:
    """Another scheduler may still say that they are there, or that it has them alone."""
    facts = facts_of(one=["a"], two=["a"], three=["a"])
    assert last_of(facts, "one", {"one"}) == "the mesh"
    sessions, joins = zip(*(drainable(name) for name in ("one", "two")), strict=True)
    drains = drains_of(*sessions, facts=facts, confirm_limit_s=0.01)
    asked = [drains.drain(pb.DrainExecutorRequest(name=name)) for name in ("one", "two")]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in outcomes] == [Unavailable, InvalidArgument]
    assert [len(each.sent) for each in joins] == [1, 0]


async def test_nobody_knows_who_is_the_last_one_while_a_scheduler_is_silent() -> None:
    sessions, joins = zip(*(drainable(name) for name in ("one", "two")), strict=True)
    facts = facts_of(one=["a"], two=["a"])
    facts.schedulers.add(name="here", reachable=True)
    facts.schedulers.add(name="there")
    drains = drains_of(*sessions, facts=facts, confirm_limit_s=0.01)
    with pytest.raises(Unavailable, match="scheduler 'there' does not say"):
        await drains.drain(pb.DrainExecutorRequest(name="one"))
    assert not joins[0].sent
