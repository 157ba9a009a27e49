"""Readiness of models, from the reports of their instances."""

import asyncio

import pytest

from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.instance_places import Slot
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.placement.executors.sessions import HostedVersion, PlacedInstance
from nereid_scheduler.placement.loads.readiness import (
    Readiness,
    is_version_ready,
    on_readiness_report,
)
from tests.support.scheduler.world import CommandStream, joined, served_version

YES, NO, SILENT = True, False, None


@pytest.mark.parametrize(
    ("responses", "ready"),
    [
        ([[YES]], True),
        ([[NO]], False),
        ([[SILENT]], None),
        # All instances of one executor.
        ([[YES, YES]], True),
        ([[YES, NO]], False),
        ([[SILENT, NO]], False),
        ([[YES, SILENT]], None),
        # Any executor.
        ([[NO], [YES]], True),
        ([[SILENT], [YES]], True),
        ([[NO], [SILENT]], None),
        ([[YES, NO], [NO, SILENT]], False),
        # Its instances have no readiness check.
        ([[NO], []], True),
    ],
)
def test_a_version_is_ready_where_all_instances_of_one_executor_are(
    responses: list[list[bool | None]], ready: bool | None
) -> None:
    assert is_version_ready(responses) is ready


class MeshRequest:
    """An executor with one instance of one version."""

    def __init__(self, *, reports_readiness: bool = True, ask_limit_s: float = 10.0) -> None:
        self.session, self.commands = joined("one")
        self.readiness = Readiness(lambda: [self.session], ask_limit_s)
        self.served = served_version(state="unknown")
        self.instance = RemoteInstance(
            9, "m_0", "one", stream=CommandStream(), reports_readiness=reports_readiness
        )
        hosted = HostedVersion({9: self.instance}, was_ever_ready=True)
        self.session.hosted[self.served] = hosted
        self.placed = PlacedInstance(
            self.instance, self.served, self.session, Slot("m_0", pb.Device.CPU, 0)
        )

    @property
    def questions(self) -> list[int]:
        """The numbers of the queries that were sent."""
        queries = [each.readiness_query for each in self.commands.sent]
        assert all(each.instance == 9 for each in queries)
        return [each.question for each in queries]

    async def is_ready(self, limit_s: float = 10.0) -> bool:
        return await self.readiness.are_ready([self.served], limit_s)

    def report(self, question: int, ready: bool, *, asked: bool = False) -> None:
        report = pb.ReadinessReport(question=question, instance=9, ready=ready, asked=asked)
        on_readiness_report(self.placed, self.session, report)


async def test_a_model_without_a_readiness_check_is_not_queried() -> None:
    asked = MeshRequest(reports_readiness=False)
    assert await asked.is_ready()
    assert asked.questions == []


async def test_no_response_in_time_is_not_ready_and_the_query_remains_pending() -> None:
    asked = MeshRequest()
    assert not await asked.is_ready(0.001)
    assert not await asked.is_ready(0.001)
    (number,) = asked.questions
    waiting = asyncio.ensure_future(asked.is_ready())
    await asyncio.sleep(0)
    assert asked.questions == [number]
    asked.report(number, ready=True)
    assert await waiting
    # A second report is ignored.
    asked.report(number, ready=False)


async def test_a_restarted_worker_is_queried_again() -> None:
    asked = MeshRequest()
    assert not await asked.is_ready(0.001)
    asked.instance.stream = CommandStream()
    waiting = asyncio.ensure_future(asked.is_ready())
    await asyncio.sleep(0)
    old, new = asked.questions
    asked.report(old, ready=False)
    asked.report(new, ready=True)
    assert await waiting


async def test_an_instance_that_does_not_even_ask_its_model_is_not_ready() -> None:
    asked = MeshRequest(ask_limit_s=0.2)
    assert not await asked.is_ready()
    # One that asks has the model's own time.
    waiting = asyncio.ensure_future(asked.is_ready())
    await asyncio.sleep(0)
    number = asked.questions[-1]
    asked.report(number, ready=False, asked=True)
    silent = MeshRequest(ask_limit_s=0.02)
    assert not await silent.is_ready()
    assert not waiting.done()
    asked.report(number, ready=True)
    assert await waiting
