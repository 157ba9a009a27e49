"""Batches of instances whose streams broke, and their executors' reports."""

import asyncio
from collections.abc import Callable

import pytest

from nereid.core.errors import Internal
from nereid.core.wire.messages import ErrorStatus
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.instance_places import Slot
from nereid_scheduler.core.instances.remote_instance import CrashReport
from nereid_scheduler.placement.executors.crash_recovery import CrashRecovery
from nereid_scheduler.placement.executors.sessions import PlacedInstance, Session
from tests.support.scheduler.world import Stream, VersionWorld, joined, served_version

ERROR = ErrorStatus(Internal.code, "it died", accepted=True)


def another() -> Session:
    return joined("")[0]


def crashed(begun: int, stream: int = 1) -> CrashReport:
    return CrashReport(begun, ERROR, stream)


class World(VersionWorld):
    """An instance with a batch, and another one that is idle."""

    def __init__(self, *, crash_stream: int = 1) -> None:
        super().__init__()
        self.served = served_version(state="unknown", runtime=self.model)
        self.session, _ = joined()
        self.placed: dict[int, PlacedInstance] = {}
        self.crash_recovery = CrashRecovery(self.placed)
        self.on_report = self.crash_recovery.on_report
        self.on_no_report = self.crash_recovery.on_no_report
        self.executor_left = self.crash_recovery.on_executor_left
        self.first, self.stream = self.add_instance(1, crash_stream=crash_stream)

    async def start(self) -> None:
        await asyncio.sleep(0)
        self.receive(7)
        assert len(self.stream.sent) == 1
        self.second, self.other = self.add_instance(2)

    def add_instance(self, number: int, *, crash_stream: int = 1) -> tuple[PlacedInstance, Stream]:
        instance, stream = self.instance(f"m_0_{number}", number, crash_stream=crash_stream)
        slot = Slot(instance.name, pb.Device.CPU, 0)
        placed = self.placed[number] = PlacedInstance(instance, self.served, self.session, slot)
        return placed, stream

    def break_stream(self) -> None:
        self.first.instance.stream = None
        self.crash_recovery.on_stream_closed(self.first, "it broke")

    def connect(self, stream: int) -> None:
        self.crash_recovery.on_reconnected(self.first, stream)
        self.first.instance.stream, self.first.instance.crash_stream = self.stream, stream

    def report(self, begun: int, stream: int = 1) -> None:
        self.crash_recovery.on_report(self.session, 1, crashed(begun, stream))

    def respond_first(self) -> None:
        self.reply(self.first.instance, self.stream.sent[0])

    def outcome(self) -> str:
        """What became of the request."""
        if self.other.sent:
            return "runs again"
        if self.responses:
            error = self.responses[0].error
            return "responded" if error is None else error.message
        return "waits"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([World.break_stream], "waits"),
        ([World.break_stream, lambda it: it.report(1)], "it died"),
        ([World.break_stream, lambda it: it.report(0)], "runs again"),
        ([World.break_stream, lambda it: it.on_no_report(it.session, 1)], "runs again"),
        ([World.break_stream, lambda it: it.connect(2)], "runs again"),
        # Of an executor that does not number its streams.
        ([World.break_stream, lambda it: it.report(1, 0)], "it died"),
        ([lambda it: it.report(1, 0), World.break_stream], "it died"),
        # Of an earlier stream, and of the next one.
        ([lambda it: it.connect(2), lambda it: it.report(0, 1), World.break_stream], "waits"),
        (
            [
                lambda it: it.connect(2),
                World.break_stream,
                lambda it: it.report(0, 1),
                lambda it: it.report(1, 2),
            ],
            "it died",
        ),
        ([lambda it: it.report(1, 2), World.break_stream], "waits"),
        ([lambda it: it.report(1, 2), lambda it: it.connect(2), World.break_stream], "it died"),
        ([lambda it: it.report(1, 2), lambda it: it.connect(3), World.break_stream], "waits"),
        (
            [World.break_stream, lambda it: it.executor_left(it.session)],
            "runs again",
        ),
        # The report comes before the end of the stream.
        ([lambda it: it.report(1)], "waits"),
        ([lambda it: it.report(1), World.break_stream], "it died"),
        ([lambda it: it.report(0), World.break_stream], "runs again"),
        ([lambda it: it.report(1), World.respond_first, World.break_stream], "responded"),
        # Events of other executors and instances.
        (
            [
                World.break_stream,
                lambda it: it.on_report(another(), 1, crashed(1)),
                lambda it: it.on_no_report(another(), 1),
            ],
            "waits",
        ),
        (
            [
                World.break_stream,
                lambda it: it.executor_left(another()),
            ],
            "waits",
        ),
        ([lambda it: setattr(it.session, "gone", True), World.break_stream], "runs again"),
        (
            [
                lambda it: it.on_report(it.session, 99, crashed(1)),
                World.break_stream,
            ],
            "waits",
        ),
    ],
)
async def test_a_batch_fails_or_runs_again_once_it_is_known_whether_it_had_begun(
    events: list[Callable[[World], None]], expected: str
) -> None:
    it = World()
    await it.start()
    for event in events:
        event(it)
    await asyncio.sleep(0)
    assert it.outcome() == expected


async def test_a_batch_runs_again_at_once_if_no_report_will_come() -> None:
    it = World(crash_stream=0)
    await it.start()
    it.break_stream()
    await asyncio.sleep(0)
    assert it.outcome() == "runs again"


async def test_a_report_of_one_stream_does_not_count_for_the_next() -> None:
    it = World()
    await it.start()
    it.break_stream()
    it.report(1)
    assert not it.first.instance.crash_reports
    it.report(1)
    # There is no stream whose end it could precede.
    assert not it.first.instance.crash_reports


async def test_an_unloaded_version_is_ignored() -> None:
    it = World()
    await it.start()
    it.served.runtime = None
    it.break_stream()
    it.report(1)
    await asyncio.sleep(0)
    assert it.outcome() == "waits"
