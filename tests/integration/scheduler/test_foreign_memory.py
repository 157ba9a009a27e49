"""References to shared memory from those that share none: what they name is another's."""

import asyncio
from pathlib import Path

import pytest

from nereid.core.wire.messages import Release
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Call
from nereid.shm.segments import SegmentPool
from nereid_scheduler.admission.call_rights import CallRights
from nereid_scheduler.core.measurements.timeline import NO_TIMELINE
from nereid_scheduler.placement.executors.drains import Drains
from nereid_scheduler.placement.executors.sessions import Session
from nereid_scheduler.placement.executors.timelines import Timelines
from nereid_scheduler.placement.loads.executor_streams import ExecutorStreams
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    LIMIT_S,
    add_model,
    numbers_of,
    request,
    world,
)

MIB = 1 << 20


@pytest.fixture
def secret() -> SegmentPool:
    """Memory of a process of this host: of this one, which the scheduler could open."""
    return SegmentPool(4 * MIB)


@pytest.mark.parametrize("decoupled", [False, True])
async def test_an_executors_reference_ends_its_stream(
    tmp_path: Path, secret: SegmentPool, decoupled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    policy = "model_transaction_policy { decoupled: true }" if decoupled else ""
    add_model(tmp_path / "m", config=CONFIG + policy)
    segment = secret.acquire_segment(MIB)
    assert segment is not None
    async with world(tmp_path / "m") as it:
        executor, gateway = await it.pair(hold=True)
        asked = request(1, 2)
        asked.accepts_many = decoupled
        pending = gateway.send(asked)
        instance, batch = await executor.batch()
        executed = pb.Executed(id=batch.id)
        head = kserve_pb2.ModelInferResponse(model_name="doubler", model_version="1")
        head.outputs.add(name="OUTPUT0", datatype="FP32", shape=[1, 2])
        response = executed.responses.add(head=head.SerializeToString())
        name, offset, size = segment.range(0, 8)
        response.payloads.add().shared_memory.CopyFrom(
            pb.SharedMemory(segment_name=name, offset=offset, size_bytes=size)
        )
        instance.stream.send(executed.SerializeToString())
        # Its stream ends, and the request runs elsewhere.
        other = await it.executor("two", hold=True)
        await other.batch()
        assert not pending.done()
        assert "does not share" in caplog.text


async def test_a_gateways_reference_ends_its_link(
    repository: Path, secret: SegmentPool, caplog: pytest.LogCaptureFixture
) -> None:
    segment = secret.acquire_segment(MIB)
    assert segment is not None
    async with world(repository) as it:
        executor = await it.executor(hold=True)
        await it.until_state("READY")
        rogue, honest = await it.gateway(), await it.gateway()
        ended = asyncio.Event()
        rogue.link.on_down = ended.set
        asked = request(1, 2)
        asked.payloads = [segment.range(0, 8)]
        rogue.send(asked)
        await asyncio.wait_for(ended.wait(), LIMIT_S)
        assert "does not share" in caplog.text
        executor.hold = False
        assert numbers_of(await honest.ask(1, 2)) == [2, 4]
        assert executor.seen == [[[1, 2]]]
        # Others' segments are not given back in their names either.
        honest.link.send(Release((segment.name,)))
        assert numbers_of(await honest.ask(3, 4)) == [6, 8]


class FarCall(Call):
    """A Join stream from another host."""

    peer_is_local = False

    is_accepted = False

    def accept(self) -> None:
        self.is_accepted = True


class JoinedSessions:
    """A loader as far as a Join stream needs one."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []

    def executor_joined(self, session: Session) -> bool:
        self.sessions.append(session)
        return True


async def no_facts() -> pb.FactsResponse:
    return pb.FactsResponse()


def test_an_executor_of_another_host_shares_no_memory_whatever_it_says() -> None:
    loader = JoinedSessions()
    timelines, drains = Timelines(NO_TIMELINE, list), Drains(list, no_facts, for_all=False)
    call = FarCall("/Join", "10.0.0.9:1234", ())  # type: ignore[abstract]
    streams = ExecutorStreams(loader, timelines, drains, CallRights({}).rights_for)  # type: ignore[arg-type]
    streams.accept_join(call)
    assert call.on_message is not None
    hello = pb.Hello(name="far", shm_namespace="the scheduler's own")
    call.on_message(pb.ExecutorEvent(hello=hello).SerializeToString())
    assert [each.hello.shm_namespace for each in loader.sessions] == [""]
    # It knows that it has joined before there is a command for it.
    assert call.is_accepted
