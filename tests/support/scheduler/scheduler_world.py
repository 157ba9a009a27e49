"""A scheduler on a unix socket, with executors and gateways that speak its protocol for real.

The executor doubles FP32 numbers. It responds at once, or when the test says so, so that a test can
stop in any phase of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np

from nereid.core.methods import (
    CONTROLS_KEY,
    EXECUTE_PATH,
    EXECUTOR_KEY,
    INFER_PATH,
    INSTANCE_KEY,
    JOIN_PATH,
    MEMORY_KEY,
    READINESS_KEY,
    WITHDRAWALS_KEY,
)
from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import (
    CachedModels,
    Cancel,
    ErrorStatus,
    FromScheduler,
    InferRequest,
    InferResponse,
    Ownership,
)
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError, SocketChannel, dial_link
from nereid_scheduler.service import SchedulerService
from nereid_scheduler.settings import Settings

LIMIT_S = 10.0
CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


def add_model(
    repository: Path, name: str = "doubler", config: str | None = CONFIG, versions: str = "1"
) -> None:
    for version in versions.split():
        directory = repository / name / version
        directory.mkdir(parents=True)
        (directory / "model.onnx").write_bytes(b"")
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)


class World:
    """One scheduler and its connections."""

    def __init__(self, service: SchedulerService, address: str) -> None:
        self.service = service
        self.address = address
        self._closers: list[Callable[[], object]] = []

    def channel(self) -> SocketChannel:
        channel = SocketChannel(self.address)
        self._closers.append(channel.close)
        return channel

    async def executor(self, name: str = "one", **how: object) -> Executor:
        executor = Executor(self, name, **how)  # type: ignore[arg-type]
        await executor.join()
        return executor

    async def gateway(self) -> Gateway:
        gateway = Gateway(self)
        async with asyncio.timeout(LIMIT_S):
            await gateway.up.wait()
        return gateway

    async def pair(self, name: str = "one", **how: object) -> tuple[Executor, Gateway]:
        """An executor, and then a gateway."""
        return await self.executor(name, **how), await self.gateway()

    async def control(self, method: str, request: Any = None, **fields: Any) -> Any:
        """Make a control call, whose request has these fields, and return the reply."""
        module = kserve_pb2 if hasattr(kserve_pb2, f"{method}Request") else pb
        message = request or getattr(module, f"{method}Request")(**fields)
        reply = await self.channel().unary(
            f"/nereid.v1.Scheduler/{method}", message.SerializeToString(), timeout_s=LIMIT_S
        )
        return getattr(module, f"{method}Response").FromString(reply)

    async def load(
        self,
        name: str = "doubler",
        config: object = None,
        files: dict[str, bytes] | None = None,
        version: str = "",
    ) -> None:
        """config: to be written as JSON, or a text."""
        asked = kserve_pb2.RepositoryModelLoadRequest(model_name=name)
        if version:
            asked.parameters["version"].string_param = version
        if config is not None:
            text = config if isinstance(config, str) else json.dumps(config)
            asked.parameters["config"].string_param = text
        for path, content in (files or {}).items():
            asked.parameters[f"file:{path}"].bytes_param = content
        await self.control("RepositoryModelLoad", asked)

    async def unload(
        self, name: str = "doubler", version: str = "", *, dependents: bool = False
    ) -> None:
        asked = kserve_pb2.RepositoryModelUnloadRequest(model_name=name)
        if version:
            asked.parameters["version"].string_param = version
        asked.parameters["unload_dependents"].bool_param = dependents
        await self.control("RepositoryModelUnload", asked)

    async def server_ready(self) -> bool:
        return bool((await self.control("ServerReady")).ready)

    async def model_ready(self, name: str = "doubler", version: str = "") -> bool:
        return bool((await self.control("ModelReady", name=name, version=version)).ready)

    async def config(self, name: str = "doubler") -> model_config_pb2.ModelConfig:
        reply: kserve_pb2.ModelConfigResponse = await self.control("ModelConfig", name=name)
        return reply.config

    async def statistics(self, name: str = "doubler") -> kserve_pb2.ModelStatistics:
        """Return the statistics of the first version."""
        reply: kserve_pb2.ModelStatisticsResponse = await self.control("ModelStatistics", name=name)
        return reply.model_stats[0]

    async def metrics(self, **fields: bool) -> str:
        reply: pb.MetricsResponse = await self.control("Metrics", **fields)
        return reply.exposition.decode()

    async def index(self) -> dict[str, tuple[str, str]]:
        reply: kserve_pb2.RepositoryIndexResponse = await self.control("RepositoryIndex")
        return {entry.name: (entry.state, entry.reason) for entry in reply.models}

    async def ready_versions(self, name: str = "doubler") -> list[str]:
        reply: kserve_pb2.RepositoryIndexResponse = await self.control("RepositoryIndex")
        return [
            entry.version for entry in reply.models if entry.name == name and entry.state == "READY"
        ]

    async def until_index(self, condition: Callable[[dict[str, tuple[str, str]]], object]) -> None:
        """Until the index is as wanted. Poll: nothing reports a change of state."""
        async with asyncio.timeout(LIMIT_S):
            while not condition(await self.index()):
                await asyncio.sleep(0)

    async def until_state(self, state: str, name: str = "doubler") -> None:
        await self.until_index(lambda index: index[name][0] == state)

    async def close(self) -> None:
        for closer in self._closers:
            await closer()  # type: ignore[misc]


@contextlib.asynccontextmanager
async def world(
    repository: Path, *others: Path, state: Any = None, **settings: object
) -> AsyncIterator[World]:
    """A scheduler of one repository, or of several. state: a SchedulerState in place of the one
    that the settings ask for.
    """
    address = f"unix:{repository.parent / 'scheduler.sock'}"
    service = SchedulerService(
        Settings(
            model_repository=tuple(map(str, (repository, *others))),
            scheduler_address=(address,),
            **settings,  # type: ignore[arg-type]
        ),
        state=state,
    )
    await service.start()
    it = World(service, address)
    try:
        yield it
    finally:
        await service.drain(0)
        await it.close()


class Instance:
    """An instance of the test's executor: one stream, one batch at a time."""

    def __init__(self, executor: Executor, load: pb.LoadInstance) -> None:
        self.executor = executor
        self.load = load
        self.channel = executor.world.channel()
        self.closed = asyncio.Event()
        self.error: RpcError | None = None
        self.stream = self.channel.stream(
            EXECUTE_PATH,
            metadata=(
                (INSTANCE_KEY, str(load.instance)),
                (EXECUTOR_KEY, executor.process),
                (MEMORY_KEY, executor.memory),
                *(((CONTROLS_KEY, "1"),) if executor.controls is not None else ()),
                *(((READINESS_KEY, "1"),) if executor.questions is not None else ()),
                *(((WITHDRAWALS_KEY, "1"),) if executor.withdrawals is not None else ()),
            ),
            on_message=self._on_batch,
            on_close=self._on_close,
        )

    def _on_batch(self, message: bytes) -> None:
        batch = pb.Batch.FromString(message)
        for control in batch.controls:
            assert self.executor.controls is not None, "it accepts no controls"
            kind = pb.MemberControl.Kind.Name(control.kind)
            self.executor.controls.put_nowait((control.batch, control.member, kind))
        if not batch.members:
            return
        payloads = [member.payloads[0].inline for member in batch.members]
        self.executor.seen.append([np.frombuffer(each, "<f4").tolist() for each in payloads])
        if self.executor.hold:
            self.executor.batches.put_nowait((self, batch))
        else:
            self.response(batch)

    def _on_close(self, error: RpcError | None) -> None:
        self.error = error
        self.closed.set()

    def response(self, batch: pb.Batch, skip: int = 0) -> None:
        """Double the numbers; skip leaves out so many responses, which is an error. The model fails
        on negative numbers, to -2 it responds with an error.
        """
        executed = pb.Executed(
            id=batch.id, compute_input_ns=1000, compute_infer_ns=2000, compute_output_ns=3000
        )
        for member in batch.members[skip:]:
            request = kserve_pb2.ModelInferRequest.FromString(member.head)
            numbers = np.frombuffer(member.payloads[0].inline, "<f4")
            response = executed.responses.add()
            if (numbers < 0).any():
                response.error.code, response.error.message, response.error.accepted = (
                    13,
                    "negative",
                    True,
                )
                response.error.by_model = bool((numbers == -2).any())
                continue
            head = kserve_pb2.ModelInferResponse(model_name=request.model_name, model_version="1")
            head.outputs.add(name="OUTPUT0", datatype="FP32", shape=request.inputs[0].shape)
            response.head = head.SerializeToString()
            response.payloads.add(inline=(2 * numbers).tobytes())
        self.stream.send(executed.SerializeToString())

    def send_responses(self, batch: pb.Batch, *responses: tuple[Any, ...], **how: Any) -> None:
        """A decoupled model's frame. Each response is the index of its member, its content (a
        number, a text for an error, None for nothing) and, unless it is the last, True.
        """
        frame = pb.Executed(id=batch.id, partial=True, **how)
        for index, what, *more in responses:
            response = frame.responses.add(id=index, more=bool(more))
            if isinstance(what, str):
                response.error.code, response.error.message, response.error.accepted = (
                    13,
                    what,
                    True,
                )
            elif what is not None:
                head = kserve_pb2.ModelInferResponse(model_name="doubler", model_version="1")
                head.outputs.add(name="OUTPUT0", datatype="FP32", shape=[1, 2])
                response.head = head.SerializeToString()
                response.payloads.add(inline=np.array([what, what], "<f4").tobytes())
        self.stream.send(frame.SerializeToString())

    async def die(self) -> None:
        await self.channel.close()


class Executor:
    """An executor that has joined. refuse: loads fail with this text; hold: batches wait for the
    test; lazy: loads wait for the test; controls: models accept controls; reports_readiness: models
    report their readiness; withdrawals: batches may wait and be withdrawn; process: what tells its
    process from others of its name; memory: what each instance takes, by device; drains: it may be
    drained, which the test does.
    """

    def __init__(
        self,
        where: World,
        name: str,
        *,
        hold: bool = False,
        refuse: str = "",
        lazy: bool = False,
        backends: tuple[str, ...] = ("onnxruntime",),
        described: pb.Described | None = None,
        controls: bool = False,
        reports_readiness: bool = False,
        withdrawals: bool = False,
        gpus: tuple[str, ...] = (),
        process: str = "",
        memory: str = "",
        drains: bool = False,
    ) -> None:
        self.world = where
        self.drains = drains
        self.memory = memory
        self.process = process or name
        self.name = name
        self.hold = hold
        self.refuse = refuse
        self.lazy = lazy
        self.backends = backends
        self.gpus = gpus
        self.description = described
        # Batch, member and kind.
        self.controls: asyncio.Queue[tuple[int, int, str]] | None = (
            asyncio.Queue() if controls else None
        )
        # Readiness queries, to which the test responds.
        self.questions: asyncio.Queue[pb.ReadinessQuery] | None = (
            asyncio.Queue() if reports_readiness else None
        )
        # Withdrawals of batches, to which the test responds.
        self.withdrawals: asyncio.Queue[pb.Withdraw] | None = (
            asyncio.Queue() if withdrawals else None
        )
        self.batches: asyncio.Queue[tuple[Instance, pb.Batch]] = asyncio.Queue()
        self.commands: asyncio.Queue[pb.ExecutorCommand] = asyncio.Queue()
        self.seen: list[list[list[float]]] = []
        self.instances: list[Instance] = []
        self.closed = asyncio.Event()
        self.error: RpcError | None = None

    async def join(self) -> None:
        self.channel = self.world.channel()
        self.stream = self.channel.stream(
            JOIN_PATH,
            metadata=((EXECUTOR_KEY, self.process),),
            on_message=self._on_command,
            on_close=self._on_close,
        )
        hello = pb.Hello(name=self.name, host="here", backends=self.backends, drains=self.drains)
        hello.devices.add(kind=pb.Device.CPU, name="cpu")
        for number, uuid in enumerate(self.gpus):
            hello.devices.add(kind=pb.Device.GPU, id=number, uuid=uuid)
        self.send(hello=hello)

    def send(self, **event: object) -> None:
        self.stream.send(pb.ExecutorEvent(**event).SerializeToString())  # type: ignore[arg-type]

    def _on_close(self, error: RpcError | None) -> None:
        self.error = error
        self.closed.set()

    def _on_command(self, message: bytes) -> None:
        command = pb.ExecutorCommand.FromString(message)
        self.commands.put_nowait(command)
        kind = command.WhichOneof("command")
        if kind == "load" and self.refuse:
            error_status = pb.ErrorStatus(code=13, message=self.refuse)
            failed = pb.InstanceFailed(instance=command.load.instance, error=error_status)
            self.send(instance_failed=failed)
        elif kind == "load" and not self.lazy:
            self.load(command.load)
        elif kind == "unload":
            self.send(instance_unloaded=pb.InstanceUnloaded(instance=command.unload.instance))
        elif kind == "readiness_query":
            assert self.questions is not None, "its models report no readiness"
            self.questions.put_nowait(command.readiness_query)
        elif kind == "withdraw":
            assert self.withdrawals is not None, "its batches cannot be withdrawn"
            self.withdrawals.put_nowait(command.withdraw)
        elif kind == "describe" and self.description is not None:
            described = pb.Described()
            described.CopyFrom(self.description)
            described.command = command.describe.command
            self.send(described=described)

    def load(self, load: pb.LoadInstance) -> Instance:
        instance = Instance(self, load)
        self.instances.append(instance)
        return instance

    async def command(self) -> pb.ExecutorCommand:
        return await asyncio.wait_for(self.commands.get(), LIMIT_S)

    async def drain_command(self) -> None:
        """Until it is asked to drain."""
        while not (await self.command()).HasField("drain"):
            pass

    async def batch(self) -> tuple[Instance, pb.Batch]:
        return await asyncio.wait_for(self.batches.get(), LIMIT_S)

    async def die(self) -> None:
        """Break all its connections, as SIGKILL would."""
        await self.channel.close()
        for instance in self.instances:
            await instance.channel.close()


class Gateway:
    """A gateway's link and its pending requests."""

    def __init__(self, where: World) -> None:
        self.up = asyncio.Event()
        self.responses: dict[int, list[InferResponse]] = {}
        self.cached_models: tuple[str, ...] | None = None
        # True once the scheduler has said that it shuts down.
        self.scheduler_leaving = False
        self._futures: dict[int, asyncio.Future[InferResponse]] = {}
        # All responses in the order of their arrival.
        self.arrivals: asyncio.Queue[InferResponse] = asyncio.Queue()
        self._last_id = 0
        self.channel = where.channel()
        codec = _Codec()
        self.link = dial_link(
            self.channel,
            INFER_PATH,
            codec,
            on_items=self._on_responses,
            on_up=self.up.set,
            on_down=self.up.clear,
        )

    def _on_responses(self, responses: list[FromScheduler]) -> None:
        for response in responses:
            if not isinstance(response, InferResponse):
                if isinstance(response, CachedModels):
                    self.cached_models = response.names
                elif isinstance(response, Ownership):
                    self.scheduler_leaving = response.leaving
                continue
            self.responses.setdefault(response.id, []).append(response)
            self.arrivals.put_nowait(response)
            future = self._futures.get(response.id)
            if future is not None and not future.done():
                future.set_result(response)

    def send(self, request: InferRequest) -> asyncio.Future[InferResponse]:
        self._last_id += 1
        request.id = self._last_id
        self._futures[request.id] = asyncio.get_running_loop().create_future()
        self.link.send(request)
        return self._futures[request.id]

    def cancel(self) -> None:
        """The request sent last."""
        self.link.send(Cancel(self._last_id))

    async def next_responses(self, count: int) -> list[tuple[int, float | str | None, bool]]:
        """Return request, content (see Instance.send_responses) and `more` of each response.

        Skips empty responses that are not the last.
        """
        responses: list[tuple[int, float | str | None, bool]] = []
        while len(responses) < count:
            response = await asyncio.wait_for(self.arrivals.get(), LIMIT_S)
            if response.more and not response.head and response.error is None:
                continue
            what: float | str | None = None
            if response.error is not None:
                what = response.error.message
            elif response.head:
                what = numbers_of(response)[0]
            responses.append((response.id, what, response.more))
        return responses

    async def arrived(self) -> None:
        """Until the scheduler has seen all that was sent: a call behind it on the connection."""
        await self.link.drain()
        message = kserve_pb2.ModelReadyRequest().SerializeToString()
        path = "/nereid.v1.Scheduler/ModelReady"
        await self.channel.unary(path, message, timeout_s=LIMIT_S)

    async def ask(self, *numbers: float, **fields: Any) -> InferResponse:
        return await asyncio.wait_for(self.send(request(*numbers, **fields)), LIMIT_S)


class _Codec:
    def __init__(self) -> None:
        out = RequestCodec()
        self.size_bytes, self.encode = out.size_bytes, out.encode
        self.decode = ResponseCodec().decode


def request(
    *numbers: float, model: str = "doubler", version: str = "", **fields: Any
) -> InferRequest:
    """Numbers in rows of two."""
    array = np.array(numbers or (1, 2), "<f4").reshape(-1, 2)
    head = kserve_pb2.ModelInferRequest(model_name=model, model_version=version)
    head.inputs.add(name="INPUT0", datatype="FP32", shape=array.shape)
    made = InferRequest(0, head.SerializeToString(), [array.tobytes()])
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def numbers_of(response: InferResponse) -> list[float]:
    assert response.error is None, response.error
    payload = response.payloads[0]
    assert isinstance(payload, bytes)
    return [float(number) for number in np.frombuffer(payload, "<f4")]


def error_status_of(response: InferResponse) -> ErrorStatus:
    assert response.error is not None
    return response.error


def description() -> pb.Described:
    """The doubler's description: a batch dimension, two FP32 numbers."""
    described = pb.Described()
    for where, name in ((described.inputs, "INPUT0"), (described.outputs, "OUTPUT0")):
        where.add(name=name, data_type=model_config_pb2.TYPE_FP32, dims=[-1, 2])
    return described
