"""Fakes of executors for the tests of the scheduler's core: streams that keep what is sent on them,
responses to batches, and segments that are lent.
"""

import asyncio
import os

from nereid.core.wire.messages import InferResponse
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Status
from nereid.shm.segments import SegmentPool

MIB = 1 << 20


class Stream:
    """An instance's stream, which keeps its batches."""

    def __init__(self) -> None:
        self.sent: list[pb.Batch] = []
        self.broken = False
        self.failed = ""

    def send(self, message: bytes) -> None:
        if self.broken:
            raise RuntimeError("cannot be written")
        self.sent.append(pb.Batch.FromString(message))

    def send_now(self, message: bytes) -> None:
        self.send(message)

    def finish(self) -> None:
        """Do nothing."""

    def fail(self, status: Status, message: str) -> None:
        self.failed = message


class CommandStream:
    """An executor's Join stream, which keeps its commands; or an instance's that gets no batch."""

    def __init__(self) -> None:
        self.sent: list[pb.ExecutorCommand] = []
        self.finished = False

    def send(self, message: bytes) -> None:
        self.sent.append(pb.ExecutorCommand.FromString(message))

    def send_now(self, message: bytes) -> None:
        self.send(message)

    def finish(self) -> None:
        self.finished = True

    def fail(self, status: Status, message: str) -> None:
        raise AssertionError(message)


class Executor:
    """An executor that has joined, in this process."""

    def __init__(self, domain: str = "here") -> None:
        self.hello = pb.Hello(name="e", shm_namespace=domain, process=str(os.getpid()))
        self.releases: list[tuple[list[str], bool]] = []
        self.segments = SegmentPool(8 * MIB)

    def send(self, command: pb.ExecutorCommand) -> None:
        self.releases.append((list(command.release.segment_names), command.release.discard))

    def response(self, number: int, content: bytes = b"abc") -> InferResponse:
        segment = self.segments.acquire_segment(MIB)
        assert segment is not None
        segment.view[: len(content)] = content
        reference = segment.range(0, len(content))
        return InferResponse(number, b"head", [reference], segment_name=segment.name)


def executed(batch: pb.Batch) -> bytes:
    """A response to each member of a batch."""
    reply = pb.Executed(id=batch.id)
    for _ in batch.members:
        reply.responses.add()
    return reply.SerializeToString()


async def turn() -> None:
    """Let a model version dispatch what has come, and what follows from it."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
