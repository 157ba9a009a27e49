"""The scheduler's core without sockets, with executors and gateways that record what they get.

The core is model versions, the catalogue, the loader and admission. The parts are the product's and
run in the test's event loop. Nothing happens by itself: the test submits, replies, reports and
loses. `turn()` lets the core act on what has come.

- Recorded streams: `Stream` (batches of an instance), `CommandStream` (commands to an executor),
  `ResponseLink` (responses to a gateway); `joined()` is an executor's session on such a stream.
- Models: `found()` in a repository, `served_version()` in a state of its life, `serve()` in a
  catalogue.
- Worlds: `VersionWorld` (one version and its instances; `add_instance()` for other versions),
  `LoaderWorld` (executors that load models), `AdmissionWorld` (a gateway's session and one model
  that is loading).

`scheduler_world.py` has a whole scheduler on a real socket, `reconciler_world.py` model control,
`tests/protocols` the same parts under every interleaving of their messages.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nereid.core.errors import NereidError
from nereid.core.wire.messages import InferRequest, InferResponse
from nereid.model_config import parse_config
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Status
from nereid.shm.segments import SegmentPool
from nereid_scheduler.admission.admission import Admission
from nereid_scheduler.admission.gateway_session import GatewaySession
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.models.desired_models import DesiredModels
from nereid_scheduler.core.models.found_model import FoundModel
from nereid_scheduler.core.models.lifecycle import LoadStatus
from nereid_scheduler.core.requests.entry import Entry
from nereid_scheduler.core.requests.load_queue import LoadQueue
from nereid_scheduler.placement.executors.sessions import Session
from nereid_scheduler.placement.loads.load_rules import LoadRules
from nereid_scheduler.placement.loads.loader import Loader
from nereid_scheduler.placement.models.catalogue import Catalogue, ServedModel, ServedVersion
from nereid_scheduler.placement.models.config_completion import CompletionRules
from nereid_scheduler.versions.caching.cache_client import CacheClient
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.tracing.spans import SpanTraces
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.peers.spans import RecordedSpans
from tests.support.scheduler.samples import head_of, model_of

MIB = 1 << 20
TENSORS = """
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""
HEAD = head_of([("I", "UINT8", [1])])


# ---- recorded streams


class Stream:
    """The Execute stream of an instance; records its batches. Fulfils BatchStream."""

    def __init__(self) -> None:
        self.sent: list[pb.Batch] = []
        self.broken = False
        self.failed = ""

    def send(self, message: bytes, at_once: bool = False) -> None:
        if self.broken:
            raise RuntimeError("cannot be written")
        self.sent.append(pb.Batch.FromString(message))

    def finish(self) -> None:
        """Do nothing."""

    def fail(self, status: Status, message: str) -> None:
        self.failed = message


class CommandStream:
    """The Join stream of an executor; records its commands. Also an instance without batches."""

    def __init__(self) -> None:
        self.sent: list[pb.ExecutorCommand] = []
        self.finished = False

    def send(self, message: bytes, at_once: bool = False) -> None:
        self.sent.append(pb.ExecutorCommand.FromString(message))

    def finish(self) -> None:
        self.finished = True

    def fail(self, status: Status, message: str) -> None:
        raise AssertionError(message)


class ResponseLink:
    """The scheduler's end of a gateway's link; records the items."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, item: Any, at_once: bool = False) -> None:
        self.sent.append(item)


class LendingExecutor:
    """An executor of this host, whose responses lie in its segments; records the releases."""

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


def joined(
    name: str = "e", stream: Any = None, *, process: str = "", **hello: Any
) -> tuple[Session, Any]:
    """Return the session of an executor whose hello has these fields, and its stream."""
    stream = stream or CommandStream()
    return Session(pb.Hello(name=name, **hello), stream, process), stream


def executed(batch: pb.Batch) -> bytes:
    """Return a frame with an empty response to each member of a batch."""
    reply = pb.Executed(id=batch.id)
    for _ in batch.members:
        reply.responses.add()
    return reply.SerializeToString()


def batches(stream: Stream) -> list[list[int]]:
    """Return the numbers of the requests in each batch that was sent."""
    return [[member.id for member in batch.members] for batch in stream.sent if batch.members]


async def turn() -> None:
    """Let a model version dispatch what has come, and what follows from it."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


# ---- models


def found(name: str, *steps: str, error: NereidError | None = None, **rest: Any) -> FoundModel:
    """Return a model of a repository: an ensemble of these steps, if there are any."""
    draft = model_config_pb2.ModelConfig(name=name, platform="ensemble" if steps else "")
    for step in steps:
        draft.ensemble_scheduling.step.add(model_name=step)
    return FoundModel(name, Path(f"/models/{name}"), draft, (1,), {1: b""}, b"d", error, **rest)


def served_version(
    name: str = "m",
    number: int = 1,
    *,
    state: str = "ready",
    path: str = "",
    draft: model_config_pb2.ModelConfig | None = None,
    runtime: Any = None,
    **rest: Any,
) -> ServedVersion:
    """Return a version in a state of its life.

    state: unknown, loading, ready, waiting (for an executor), failed, unloading or unloaded.
    """
    draft = model_config_pb2.ModelConfig() if draft is None else draft
    served = ServedVersion(name, number, path, draft, runtime=runtime, **rest)
    life = served.life
    if state != "unknown":
        life.await_executor()
    if state in ("ready", "waiting", "unloading", "unloaded"):
        life.report("executor", LoadStatus.UP)
    if state == "waiting":
        life.forget_executor("executor")
    if state == "failed":
        life.report("executor", LoadStatus.FAILED, "because")
    if state in ("unloading", "unloaded"):
        life.begin_unload()
    if state == "unloaded":
        life.end_unload()
    return served


def served_model(name: str, *versions: ServedVersion) -> ServedModel:
    return ServedModel(name, {each.number: each for each in versions})


def serve(catalogue: Catalogue, name: str = "m", **fields: Any) -> ServedVersion:
    """Add version 1 of a model to a catalogue, in place of what it has of that name."""
    served = served_version(name, **fields)
    catalogue.set_model(served_model(name, served))
    return served


# ---- worlds


def add_instance(
    model: ModelVersion, name: str = "i", number: int = 1, **fields: Any
) -> tuple[RemoteInstance, Stream]:
    """Give a version another instance, whose stream records its batches."""
    stream = Stream()
    instance = RemoteInstance(number, name, "executor", stream, **fields)
    model.pool.roster.add(instance)
    return instance, stream


class VersionWorld:
    """Version 1 of a model, its instances, and the responses to its requests."""

    def __init__(
        self,
        text: str = "",
        *,
        name: str = "m",
        tensors: str = TENSORS,
        backend: str = "python",
        context: VersionContext | None = None,
        traces: Any = None,
        **limits: Any,
    ) -> None:
        """Make a version; text: of its configuration, beside the tensors; limits: of its queue."""
        config = model_of(tensors + text, name=name, backend=backend)
        context = context or VersionContext(QueueLimits(**limits), traces)
        self.steps = context.steps
        self.model = ModelVersion(config, 1, context)
        self.responses: list[InferResponse] = []
        # Names of the retired instances that have nothing left to do.
        self.idle: list[str] = []

    def instance(
        self, name: str = "i", number: int = 1, **fields: Any
    ) -> tuple[RemoteInstance, Stream]:
        return add_instance(self.model, name, number, **fields)

    def retire(self, instance: RemoteInstance, *, after_sequences: bool = False) -> None:
        """Retire an instance as the loader does, which unloads it when it is idle."""
        if after_sequences:
            self.model.pool.roster.retire_after_sequences(instance)
        else:
            self.model.pool.roster.retire(instance)
        if instance.at_work:
            instance.on_idle = lambda: self.idle.append(instance.name)
        else:
            self.idle.append(instance.name)

    def request(self, number: int, **fields: Any) -> InferRequest:
        shape = [1, 1] if self.model.config.max_batch_size else [1]
        return InferRequest(number, head_of([("I", "UINT8", shape)]), [b"x"], **fields)

    def submit(self, *numbers: int, **fields: Any) -> list[Entry]:
        return [
            self.model.submit(self.request(number, **fields), self.responses.append)
            for number in numbers
        ]

    def receive(self, *numbers: int, **fields: Any) -> list[Entry]:
        """Submit requests as those of one frame, after which the version takes a step."""
        self.steps.begin_input()
        entries = self.submit(*numbers, **fields)
        self.steps.end_input()
        return entries

    def reply(self, instance: RemoteInstance, batch: pb.Batch) -> None:
        """Respond to each member of a batch."""
        self.model.pool.on_reply(instance, executed(batch))

    def outcomes(self) -> dict[int, str]:
        """Return the errors of the requests that have a response; empty texts without an error."""
        return {each.id: each.error.message if each.error else "" for each in self.responses}


class LoaderWorld:
    """A loader with its catalogue, and executors that join it."""

    def __init__(
        self,
        *,
        completes: bool = False,
        settings: Callable[[str], dict[str, str]] = lambda _: {},
        cache: CacheClient | None = None,
        desired: DesiredModels | None = None,
    ) -> None:
        """Make a loader without executors.

        completes: executors describe models whose configuration is incomplete. settings: of a
        backend.
        """
        self.catalogue = Catalogue(desired=desired)
        self.changes = 0
        completion = CompletionRules(not completes, settings)
        rules = LoadRules(completion, settings, QueueLimits(), cache=cache)
        self.loader = Loader(rules, self._on_change, self.catalogue)

    def _on_change(self, _: str) -> None:
        self.changes += 1

    def load(self, name: str, config: str, number: int = 1, path: str = "/m/1") -> ServedVersion:
        """Begin to load a version, beside the others of its model."""
        draft = parse_config(f'name: "{name}"{config}', model_name=name)
        served = ServedVersion(name, number, path, draft)
        model = self.catalogue.model(name) or ServedModel(name)
        model.versions[number] = served
        self.catalogue.set_model(model)
        self.loader.load(served)
        return served

    def join(
        self, name: str = "e", *backends: str, stream: Any = None, gpu: bool = False
    ) -> tuple[Session, Any]:
        session, stream = joined(name, stream, backends=backends or ("onnxruntime",))
        if gpu:
            session.hello.devices.add(kind=pb.Device.GPU, id=0, uuid="gpu")
        self.loader.executor_joined(session)
        return session, stream

    def open(self, stream: CommandStream, process: str = "") -> list[CommandStream]:
        """Open the streams of all instances that an executor was commanded to load."""
        streams = []
        for command in stream.sent:
            if command.HasField("load"):
                streams.append(CommandStream())
                number = command.load.instance
                assert self.loader.streams.instance_opened(number, streams[-1], process)
        return streams


class AdmissionWorld:
    """A model named m whose first load is in progress, and a gateway's session."""

    def __init__(
        self,
        limit_s: float = 10.0,
        *,
        max_held: int = 2,
        max_queue_size: int = 0,
        served: ServedVersion | None = None,
        **admission: Any,
    ) -> None:
        self.max_queue_size = max_queue_size
        self.tracer = RecordedSpans()
        self.traces = SpanTraces(self.tracer)
        self.served = served or served_version(state="loading")
        self.catalogue = Catalogue([served_model("m", self.served)])
        self.load_queue = LoadQueue(limit_s, max_held)
        self.admission = Admission(self.catalogue, self.load_queue, self.traces, **admission)
        self.link = ResponseLink()
        self.gateway = GatewaySession(self.admission)
        self.gateway.link = self.link

    def ready(self) -> ModelVersion:
        """Report the model as loaded."""
        limits = QueueLimits(self.max_queue_size)
        context = VersionContext(limits, self.traces, steps=self.admission.steps)
        model = ModelVersion(model_of(TENSORS), 1, context)
        self.served.runtime = model
        self.served.life.report("a", LoadStatus.UP)
        self.admission.models_changed()
        return model

    def errors(self) -> list[tuple[int, str]]:
        return [(each.id, each.error.message) for each in self.link.sent if each.error]


def request(number: int, **fields: Any) -> InferRequest:
    """Return a request to the model of an AdmissionWorld."""
    head = kserve_pb2.ModelInferRequest(model_name="m")
    head.inputs.add(name="I", datatype="UINT8", shape=[1])
    return InferRequest(number, head.SerializeToString(), [b"x"], **fields)
