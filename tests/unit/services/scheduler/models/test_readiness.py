"""What follows from what instances say of their models' readiness."""

from __future__ import annotations

import asyncio

import pytest

from nereid.pb import model_config_pb2 as config_pb
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.executors.instance import Instance
from nereid.services.scheduler.executors.placement import Slot
from nereid.services.scheduler.executors.sessions import Part, Placed, Session
from nereid.services.scheduler.models.catalogue import ServedVersion
from nereid.services.scheduler.models.readiness import Readiness, heard, is_version_ready

YES, NO, SILENT = True, False, None


@pytest.mark.parametrize(
    ("party", "decided"),
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
        # Its instances have nothing to say.
        ([[NO], []], True),
    ],
)
def test_a_version_is_ready_where_all_instances_of_one_executor_are(
    party: list[list[bool | None]], decided: bool | None
) -> None:
    assert is_version_ready(party) is decided


class Stream:
    """One end of a stream, whose messages nobody answers."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def finish(self) -> None:
        """Nobody is there."""


class Asked:
    """An executor with one instance of one version."""

    def __init__(self, *, tells_ready: bool = True) -> None:
        self.commands = Stream()
        self.session = Session(pb.Hello(name="one"), self.commands)
        self.readiness = Readiness(lambda: [self.session])
        self.served = ServedVersion("m", 1, "", config_pb.ModelConfig())
        self.instance = Instance(9, "m_0", "one", stream=Stream(), tells_ready=tells_ready)
        part = Part({9: self.instance}, completed=True)
        self.session.parts[self.served] = part
        self.placed = Placed(
            self.instance, self.served, self.session, Slot("m_0", pb.Device.CPU, 0)
        )

    @property
    def questions(self) -> list[int]:
        """The numbers of those that were asked."""
        commands = [pb.ExecutorCommand.FromString(each) for each in self.commands.sent]
        assert all(each.readiness_query.instance == 9 for each in commands)
        return [each.readiness_query.question for each in commands]

    async def is_ready(self, limit_s: float = 10.0) -> bool:
        return await self.readiness.are_ready([self.served], limit_s)

    def tell(self, question: int, ready: bool) -> None:
        heard(
            self.placed,
            self.session,
            pb.ReadinessReport(question=question, instance=9, ready=ready),
        )


async def test_who_has_nothing_to_say_is_not_asked() -> None:
    asked = Asked(tells_ready=False)
    assert await asked.is_ready()
    assert asked.questions == []


async def test_no_response_is_a_no_and_the_question_stays() -> None:
    asked = Asked()
    assert not await asked.is_ready(0.001)
    assert not await asked.is_ready(0.001)
    (number,) = asked.questions
    waiting = asyncio.ensure_future(asked.is_ready())
    await asyncio.sleep(0)
    assert asked.questions == [number]
    asked.tell(number, ready=True)
    assert await waiting
    # Late news of what is answered.
    asked.tell(number, ready=False)


async def test_a_worker_that_is_back_is_asked_anew() -> None:
    asked = Asked()
    assert not await asked.is_ready(0.001)
    asked.instance.stream = Stream()
    waiting = asyncio.ensure_future(asked.is_ready())
    await asyncio.sleep(0)
    old, new = asked.questions
    asked.tell(old, ready=False)
    asked.tell(new, ready=True)
    assert await waiting
