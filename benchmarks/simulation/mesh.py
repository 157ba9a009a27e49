"""A simulated mesh: the cores of one or several schedulers, with executors and clients.

Executors are timers; clients run a closed loop.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from google.protobuf import text_format

from nereid.core.wire.messages import InferRequest, InferResponse
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.admission.admission import Admission
from nereid_scheduler.admission.gateway_session import GatewaySession
from nereid_scheduler.batching.rate_limiting.rate_limiter import RateLimiter
from nereid_scheduler.control.shards.members.ownership import owner_of
from nereid_scheduler.core.requests.load_queue import LoadQueue
from nereid_scheduler.core.resources import Resources
from nereid_scheduler.placement.executors.sessions import PlacedInstance, Session
from nereid_scheduler.placement.loads.load_rules import LoadRules
from nereid_scheduler.placement.loads.loader import Loader
from nereid_scheduler.placement.models.catalogue import Catalogue, ServedModel, ServedVersion
from nereid_scheduler.placement.models.config_completion import CompletionRules
from nereid_scheduler.versions.queue_limits import QueueLimits

if TYPE_CHECKING:
    from nereid.rpc import Status
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance

_CONFIG = """
backend: "python"
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""
_GROUP = "instance_group {{ count: 1 kind: KIND_CPU {} }}"
_ONE_AT_A_TIME = 'rate_limiter { resources { name: "device" count: 1 } }'
# Bounds of one execution's time, and of the time of each of its requests.
_EXECUTION_S = (0.003, 0.005)
REQUEST_S = 0.0001


@dataclass(frozen=True)
class Size:
    """Size of a mesh.

    executors: number of executors; each has one instance of each model. limited: if true, the rate
    limiter lets an executor run only one of its instances at a time. asked: number of models that
    get requests; 0 means all. schedulers: number of schedulers; each has a share of the models.
    """

    executors: int
    models: int
    scheduler: str = ""
    limited: bool = False
    max_batch_size: int = 0
    asked: int = 0
    schedulers: int = 1


class Surroundings(Protocol):
    """What a simulated scheduler needs: a gateway's end of the link, and times of executions."""

    size: Size
    loop: asyncio.AbstractEventLoop
    random: random.Random
    # Bounds of one execution's time, and of the time of each of its requests.
    execution_s: tuple[float, float]
    request_s: float
    busy_s: float
    executions: int

    def send(self, item: InferResponse, at_once: bool = False) -> None:
        """Take a response."""


class SimulatedScheduler:
    """One scheduler of a mesh; `requests`: number of requests that were sent to it."""

    def __init__(self, mesh: Surroundings, limits: QueueLimits | None = None) -> None:
        """Prepare a scheduler.

        Without limits one request may wait for a first load, and any number for an instance.
        """
        self.mesh = mesh
        self.requests = 0
        limiter: RateLimiter[RemoteInstance] | None = None
        if mesh.size.limited:
            limiter = RateLimiter(Resources(), mesh.loop.call_soon)
        rules = LoadRules(
            CompletionRules(True, lambda _: {}),
            lambda _: {},
            limits or QueueLimits(),
            rate_limiter=limiter,
        )
        self.catalogue = Catalogue()
        self.load_queue = LoadQueue(30.0, 1)
        if limits is not None:
            self.load_queue = LoadQueue(limits.no_executor_timeout_s, limits.max_queue_size)
        self.admission = Admission(self.catalogue, self.load_queue)
        self.loader = Loader(rules, lambda _: self.admission.models_changed(), self.catalogue)
        self.gateway = GatewaySession(self.admission)
        self.gateway.link = mesh

    def load(self, name: str, text: str) -> None:
        """Load a model with this configuration on all executors, which join later."""
        draft = text_format.Parse(text, model_config_pb2.ModelConfig(name=name))
        served = ServedVersion(name, 1, "/nowhere", draft)
        self.catalogue.set_model(ServedModel(name, {1: served}))
        self.loader.load(served)

    def loaded(self, number: int) -> None:
        """Note that an executor has loaded an instance."""
        stream = InstanceStream(self.mesh)
        placed = self.loader.streams.instance_opened(number, stream)
        assert placed is not None, "an unknown instance"
        stream.serve(placed)


class SimulatedMesh:
    """The simulated mesh, which must be created inside a VirtualLoop."""

    def __init__(self, size: Size, seed: int = 1) -> None:
        self.size = size
        self.random = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.execution_s = _EXECUTION_S
        self.request_s = REQUEST_S
        self.busy_s = 0.0
        self.executions = 0
        self.completed = 0
        self.submitted = 0
        self._heads = [
            head_of(f"m{number}", size.max_batch_size)
            for number in range(size.asked or size.models)
        ]
        self._target = 0
        self._ending = False
        self._done: asyncio.Future[None] | None = None
        names = [f"scheduler{number}" for number in range(size.schedulers)]
        self.schedulers = {name: SimulatedScheduler(self) for name in names}
        # Owner of each model, by the model's number.
        self._owners = [
            self.schedulers[owner_of(f"m{number}", names) or names[0]]
            for number in range(size.models)
        ]

    @property
    def largest_share(self) -> float:
        """Largest share of the requests at one scheduler."""
        counts = [scheduler.requests for scheduler in self.schedulers.values()]
        return max(counts) / sum(counts)

    def start(self) -> None:
        """Load all models on all executors."""
        size, text = self.size, model_text(self.size)
        for number, owner in enumerate(self._owners):
            owner.load(f"m{number}", text)
        for number in range(size.executors):
            name = f"executor{number}"
            hello = pb.Hello(name=name, host=name, backends=["python"])
            for scheduler in self.schedulers.values():
                scheduler.loader.executor_joined(Session(hello, CommandStream(scheduler)))

    async def run(self, requests: int, clients: int) -> None:
        """Complete this many more requests. Clients send the next request after each response."""
        self._target = self.completed + requests
        self._done = self.loop.create_future()
        for _ in range(clients - (self.submitted - self.completed)):
            self.submit()
        await self._done

    async def drain(self) -> None:
        """Complete pending requests, and send nothing more."""
        self._ending = True
        # Requests that clients are about to send come first.
        await asyncio.sleep(0)
        self._target = self.submitted
        if self.completed < self.submitted:
            self._done = self.loop.create_future()
            await self._done
        self._ending = False

    async def finish(self) -> None:
        """Complete pending requests, and unload all models."""
        await self.drain()
        for scheduler in self.schedulers.values():
            for served in list(scheduler.loader.versions):
                scheduler.loader.unload_now(served)

    # ---- the gateway: its requests, and its end of the link

    def submit(self) -> None:
        """Send a client's next request."""
        self.submitted += 1
        number = self.random.randrange(len(self._heads))
        scheduler = self._owners[number]
        scheduler.requests += 1
        request = InferRequest(self.submitted, self._heads[number], [b"x"])
        scheduler.gateway.on_items([request])

    def send(self, item: InferResponse, at_once: bool = False) -> None:  # noqa: ARG002 (as Link)
        """Take a response at the gateway's end of the link."""
        assert item.error is None, item.error
        self.completed += 1
        if self.completed < self._target:
            if not self._ending:
                # The next request comes later, as if the response came over a socket.
                self.loop.call_soon(self.submit)
        elif self._done is not None and not self._done.done():
            self._done.set_result(None)


class CommandStream:
    """Join stream of an executor that loads models at once."""

    def __init__(self, scheduler: SimulatedScheduler) -> None:
        self._scheduler = scheduler

    def send(self, message: bytes) -> None:
        """Carry out a command."""
        command = pb.ExecutorCommand.FromString(message)
        if command.HasField("load"):
            scheduler = self._scheduler
            scheduler.mesh.loop.call_soon(scheduler.loaded, command.load.instance)

    def finish(self) -> None:
        """Do nothing: nothing is open."""


class InstanceStream:
    """Execute stream of an instance, which responds after the time of an execution."""

    def __init__(self, mesh: Surroundings) -> None:
        self._mesh = mesh

    def serve(self, placed: PlacedInstance) -> None:
        """Set the instance that the stream responds for."""
        model = placed.served.pool
        assert model is not None, "an instance of a version that is not in service"
        self.placed = placed
        self._instance = placed.instance
        self._executed = partial(model.on_reply, placed.instance)

    def send(self, message: bytes, at_once: bool = False) -> None:  # noqa: ARG002 (the instance knows its batch)
        """Begin the execution of the instance's batch."""
        mesh = self._mesh
        # The instance knows what it runs once this has returned.
        mesh.loop.call_soon(self._begin, mesh.random.uniform(*mesh.execution_s))

    def _begin(self, execution_s: float) -> None:
        mesh, running = self._mesh, self._instance.batches.first
        if running is None:
            return
        members = len(running.batch.entries)
        execution_s += members * mesh.request_s
        reply = pb.Executed(id=running.id)
        for _ in range(members):
            reply.responses.add()
        mesh.busy_s += execution_s
        mesh.executions += 1
        mesh.loop.call_later(execution_s, self._complete, reply.SerializeToString())

    def _complete(self, reply: bytes) -> None:
        self._executed(reply)

    def finish(self) -> None:
        """Do nothing: nothing is open."""

    def fail(self, status: Status, message: str) -> None:
        """Do nothing: nothing is open."""


def model_text(size: Size) -> str:
    """Return the configuration of the models of a mesh, which all have the same one."""
    limit = _ONE_AT_A_TIME if size.limited else ""
    batch = f"max_batch_size: {size.max_batch_size}"
    return " ".join((_CONFIG, batch, size.scheduler, _GROUP.format(limit)))


def head_of(model: str, max_batch_size: int) -> bytes:
    """Return the head of a request to this model."""
    head = kserve_pb2.ModelInferRequest(model_name=model)
    shape = [1, 1] if max_batch_size else [1]
    head.inputs.add(name="I", datatype="UINT8", shape=shape)
    return head.SerializeToString()
