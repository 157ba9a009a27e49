"""Batches of instances whose streams broke, and what their executors say of them."""

import asyncio
from collections.abc import Callable

import pytest

from nereid.core.errors import Internal
from nereid.core.messages import ErrorStatus, InferRequest, InferResponse
from nereid.model_config import parse_config
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.executors.crash_recovery import Fate, Fates
from nereid.services.scheduler.executors.instance import Instance
from nereid.services.scheduler.executors.placement import Slot
from nereid.services.scheduler.executors.sessions import Placed, Session
from nereid.services.scheduler.models.catalogue import ServedVersion
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.models.queue_limits import QueueLimits
from tests.support.scheduler.fake_executors import Stream, executed
from tests.support.scheduler.samples import head_of, model_of

CONFIG = """
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""
ERROR = ErrorStatus(Internal.code, "it died", accepted=True)


class World:
    """An instance with a batch, and another one that has nothing to do yet."""

    def __init__(self, *, vouched: bool = True) -> None:
        self.runtime = ModelVersion(model_of(CONFIG), 1, QueueLimits())
        draft = parse_config(f'name: "m" {CONFIG}', model_name="m")
        self.served = ServedVersion("m", 1, "/m/1", draft, runtime=self.runtime)
        self.session = Session(pb.Hello(name="e"), Stream())
        self.placed: dict[int, Placed] = {}
        self.fates = Fates(self.placed)
        self.responses: list[InferResponse] = []
        self.first, self.stream = self.add(1, vouched=vouched)

    async def start(self) -> None:
        await asyncio.sleep(0)
        request = InferRequest(7, head_of([("I", "UINT8", [1])]), [b"x"])
        self.runtime.submit(request, self.responses.append, at_once=True)
        assert len(self.stream.sent) == 1
        self.second, self.other = self.add(2)

    def add(self, number: int, *, vouched: bool = True) -> tuple[Placed, Stream]:
        stream = Stream()
        instance = Instance(number, f"m_0_{number}", "e", stream, vouched=vouched)
        slot = Slot(instance.name, pb.Device.CPU, 0)
        placed = self.placed[number] = Placed(instance, self.served, self.session, slot)
        self.runtime.add_instance(instance)
        return placed, stream

    def breaks(self) -> None:
        self.first.instance.stream = None
        self.fates.closed(self.first, "it broke")

    def tells(self, begun: int) -> None:
        self.fates.told(self.session, 1, Fate(begun, ERROR))

    def responses_first(self) -> None:
        self.runtime.executed(self.first.instance, executed(self.stream.sent[0]))

    def outcome(self) -> str:
        """What has become of the request."""
        if self.other.sent:
            return "runs again"
        if self.responses:
            error = self.responses[0].error
            return "answered" if error is None else error.message
        return "waits"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([World.breaks], "waits"),
        ([World.breaks, lambda it: it.tells(1)], "it died"),
        ([World.breaks, lambda it: it.tells(0)], "runs again"),
        ([World.breaks, lambda it: it.fates.told(it.session, 1)], "runs again"),
        ([World.breaks, lambda it: it.fates.left(it.session)], "runs again"),
        # The other way about: the executor was faster than the stream.
        ([lambda it: it.tells(1)], "waits"),
        ([lambda it: it.tells(1), World.breaks], "it died"),
        ([lambda it: it.tells(0), World.breaks], "runs again"),
        ([lambda it: it.tells(1), World.responses_first, World.breaks], "answered"),
        # Who has nothing to say.
        ([World.breaks, lambda it: it.fates.told(Session(pb.Hello(), Stream()), 1)], "waits"),
        ([World.breaks, lambda it: it.fates.left(Session(pb.Hello(), Stream()))], "waits"),
        ([lambda it: setattr(it.session, "gone", True), World.breaks], "runs again"),
        ([lambda it: it.fates.told(it.session, 99, Fate(1, ERROR)), World.breaks], "waits"),
    ],
)
async def test_a_batch_is_settled_once_it_is_known_how_far_it_came(
    events: list[Callable[[World], None]], expected: str
) -> None:
    it = World()
    await it.start()
    for event in events:
        event(it)
    await asyncio.sleep(0)
    assert it.outcome() == expected


async def test_what_was_executed_and_is_responded_late_has_been_begun() -> None:
    it = World()
    await it.start()
    reply = pb.Executed(id=1, partial=True)
    it.runtime.executed(it.first.instance, reply.SerializeToString())
    it.breaks()
    await asyncio.sleep(0)
    assert it.outcome() == "waits"
    it.tells(1)
    await asyncio.sleep(0)
    assert it.outcome() == "it died"


async def test_an_instance_that_nobody_vouches_for_is_lost_at_once() -> None:
    it = World(vouched=False)
    await it.start()
    it.breaks()
    await asyncio.sleep(0)
    assert it.outcome() == "runs again"


async def test_what_was_told_of_one_stream_does_not_count_for_the_next() -> None:
    it = World()
    await it.start()
    it.breaks()
    it.tells(1)
    assert it.first.instance.fate is None
    it.tells(1)
    # There is no stream whose end could be awaited.
    assert it.first.instance.fate is None


async def test_a_version_that_is_gone_has_nothing_to_settle() -> None:
    it = World()
    await it.start()
    it.served.runtime = None
    it.breaks()
    it.tells(1)
    await asyncio.sleep(0)
    assert it.outcome() == "waits"
