"""A scheduler for executors under test: a real rpc.Server that accepts their streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Call, Handlers, Server, Status
from tests.support.models.onnx_models import config, head, member, value, write

WAIT_S = 20.0


class AcceptedStream:
    """A stream that an executor has opened; its end can be awaited."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.ended = asyncio.Event()
        call.on_cancel = self.ended.set
        call.on_half_close = self._on_half_close
        call.accept()

    def _on_half_close(self) -> None:
        self.ended.set()
        self.call.finish()

    async def wait(self) -> None:
        await asyncio.wait_for(self.ended.wait(), WAIT_S)


class JoinStream(AcceptedStream):
    """An executor's Join stream."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.events: asyncio.Queue[pb.ExecutorEvent] = asyncio.Queue()
        # Usage is reported at any time, as models' metrics are.
        self.usages: asyncio.Queue[pb.DeviceUsage] = asyncio.Queue()
        call.on_message = self._on_message

    def _on_message(self, data: bytes) -> None:
        event = pb.ExecutorEvent.FromString(data)
        kind = event.WhichOneof("event")
        if kind == "usage":
            self.usages.put_nowait(event.usage)
        elif kind != "custom_metrics":
            self.events.put_nowait(event)

    async def event(self) -> pb.ExecutorEvent:
        return await asyncio.wait_for(self.events.get(), WAIT_S)

    async def failure(self) -> pb.InstanceFailed:
        event = await self.event()
        assert event.WhichOneof("event") == "instance_failed", event
        return event.instance_failed

    def begin_describe(
        self, command: int, model_config: model_config_pb2.ModelConfig, path: str
    ) -> None:
        describe = pb.Describe(command=command, config=model_config, version_path=path)
        self.call.send(pb.ExecutorCommand(describe=describe).SerializeToString())

    async def describe(self, model_config: model_config_pb2.ModelConfig, path: str) -> pb.Described:
        self.begin_describe(5, model_config, path)
        event = await self.event()
        assert event.described.command == 5
        return event.described

    def load(
        self,
        number: int,
        model_config: model_config_pb2.ModelConfig,
        path: str,
        kind: int = 0,
        **fields: Any,
    ) -> None:
        load = pb.LoadInstance(
            instance=number,
            config=model_config,
            version=1,
            version_path=path,
            instance_name=f"m_{number}",
            kind=kind,  # type: ignore[arg-type]
        )
        load.MergeFrom(pb.LoadInstance(**fields))
        self.call.send(pb.ExecutorCommand(load=load).SerializeToString())

    def unload(self, number: int, *, keep: bool = False) -> None:
        unload = pb.UnloadInstance(instance=number, keep=keep)
        self.call.send(pb.ExecutorCommand(unload=unload).SerializeToString())

    def withdraw(self, number: int, batch: int) -> None:
        withdraw = pb.Withdraw(instance=number, batch=batch)
        self.call.send(pb.ExecutorCommand(withdraw=withdraw).SerializeToString())


# Beyond those that tests choose.
_numbers = count(1 << 20)


class InstanceStream(AcceptedStream):
    """An instance's Execute stream."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.number = int(str(call.get("nereid-instance")))
        self.executed: asyncio.Queue[pb.Executed] = asyncio.Queue()
        call.on_message = lambda data: self.executed.put_nowait(pb.Executed.FromString(data))

    def send(self, *members: pb.BatchMember, number: int = 0) -> None:
        """number 0: greater than those of all batches before."""
        self.call.send(pb.Batch(id=number or next(_numbers), members=members).SerializeToString())

    async def responses(self) -> pb.Executed:
        return await asyncio.wait_for(self.executed.get(), WAIT_S)

    async def execute(self, *members: pb.BatchMember) -> pb.Executed:
        self.send(*members)
        return await self.responses()


class Scheduler:
    """Accepts executors and hands their streams to the test."""

    def __init__(self) -> None:
        self._sessions: asyncio.Queue[JoinStream] = asyncio.Queue()
        self._streams: asyncio.Queue[InstanceStream] = asyncio.Queue()
        # The numbers of instances to refuse.
        self.refused: set[str] = set()

    async def accept_session(self) -> tuple[JoinStream, pb.Hello]:
        session = await asyncio.wait_for(self._sessions.get(), WAIT_S)
        return session, (await session.event()).hello

    async def accept_stream(self) -> InstanceStream:
        return await asyncio.wait_for(self._streams.get(), WAIT_S)

    @property
    def streams_waiting(self) -> int:
        return self._streams.qsize()

    @asynccontextmanager
    async def serving(self, path: Path | str) -> AsyncIterator[str]:
        """At a socket's path, or at an address."""
        server = Server(
            Handlers(
                stream={
                    "/nereid.v1.Scheduler/Join": self._on_join,
                    "/nereid.v1.Scheduler/Execute": self._on_execute,
                }
            )
        )
        address = await server.listen(path if isinstance(path, str) else f"unix:{path}")
        try:
            yield address
        finally:
            await server.close()

    def _on_join(self, call: Call) -> None:
        self._sessions.put_nowait(JoinStream(call))

    def _on_execute(self, call: Call) -> None:
        if call.get("nereid-instance") in self.refused:
            call.fail(Status.NOT_FOUND, "never heard of it")
        else:
            self._streams.put_nowait(InstanceStream(call))


def request(fill: float, rows: int = 1) -> pb.BatchMember:
    """For models of one input "x", FP32 [2]."""
    return member(head(("x", "FP32", [rows, 2])), np.full((rows, 2), fill, np.float32).tobytes())


SLOW = config(
    "input { name: 'turns' data_type: TYPE_INT64 dims: 1 } "
    "output { name: 'done' data_type: TYPE_INT64 dims: 1 } "
    'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
)


def turns(count: int) -> pb.BatchMember:
    return member(head(("turns", "INT64", [1])), np.array([count], np.int64).tobytes())


def slow(directory: Path) -> Path:
    """Save a model of as many matrix products of some 50 us each as requested; done = turns."""
    scalar = ("FP32", [128, 128])
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state_in", "eye"], ["state_out"]),
            helper.make_node("Identity", ["go_in"], ["go_out"]),
        ],
        "body",
        [value("turn", "INT64", []), value("go_in", "BOOL", []), value("state_in", *scalar)],
        [value("go_out", "BOOL", []), value("state_out", *scalar)],
    )
    nodes = [
        helper.make_node("Squeeze", ["turns"], ["count"]),
        helper.make_node("Loop", ["count", "yes", "eye"], ["product"], body=body),
        helper.make_node("ReduceMin", ["product"], ["least"], keepdims=0),
        helper.make_node("Cast", ["least"], ["none"], to=TensorProto.INT64),
        helper.make_node("Add", ["turns", "none"], ["done"]),
    ]
    weights = [
        numpy_helper.from_array(np.eye(128, dtype=np.float32), "eye"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    inputs, outputs = [value("turns", "INT64", [1])], [value("done", "INT64", [1])]
    return write(directory, nodes, inputs, outputs, weights)
