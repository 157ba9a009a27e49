"""Leases of shared-memory segments: a gateway's and an executor's segments, whose names travel by
way of the scheduler, over a link and streams that break. The memory is real: who reads a segment
that was reused meanwhile reads another request's bytes.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nereid.core.errors import Unavailable
from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import CachedModels, InferRequest, InferResponse
from nereid.mesh_routing.router.only_scheduler import OnlySchedulerRouter
from nereid.mesh_routing.router.pending_requests import PendingRequests
from nereid.pb import nereid_pb2 as pb
from nereid.shm.segments import SHM_THRESHOLD_BYTES, SegmentPool
from nereid.version import is_compiled
from nereid_executor.backends.python.direct.output_segments import OutputSegments
from nereid_executor.core.shared_tensors import OutputLender, SharedTensors
from nereid_gateway.core.tensors.tensor_memory import TensorMemory
from nereid_scheduler.admission.admission import Admission
from nereid_scheduler.admission.gateway_session import GatewaySession
from nereid_scheduler.core.requests.load_queue import LoadQueue
from nereid_scheduler.core.requests.segment_owners import SegmentOwners
from nereid_scheduler.placement.models.catalogue import Catalogue
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.version_context import VersionContext
from tests.protocols.explorer import Action, Channel, World, explore, explore_random
from tests.protocols.instance_wire import InstanceWire
from tests.protocols.message import Message
from tests.protocols.virtual_loop import VirtualLoop
from tests.support.mesh.fake_link import IGNORE
from tests.support.scheduler.samples import head_of, model_of
from tests.support.scheduler.world import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator


_SIZE = SHM_THRESHOLD_BYTES
_MODEL = model_of(
    """
    input { name: "I" data_type: TYPE_UINT8 dims: -1 }
    output { name: "O" data_type: TYPE_UINT8 dims: -1 }
    """
)
_HEAD = head_of([("I", "UINT8", [_SIZE])])
_INSTANCES = 2
_LIMIT = 1 << 30


def _content(number: int) -> bytes:
    return bytes([number + 1]) * _SIZE


def _same(view: Any, content: bytes) -> bool:
    return len(view) == _SIZE and view[0] == content[0] and view[-1] == content[-1]


@dataclass(frozen=True)
class Parts:
    """The machines of the three processes."""

    table: type[PendingRequests] = PendingRequests
    memory: type[TensorMemory] = TensorMemory
    session: type[GatewaySession] = GatewaySession
    shared: type[SharedTensors] = SharedTensors
    lender: type[OutputLender] = OutputLender
    gateway_pool: type[SegmentPool] = SegmentPool
    executor_pool: type[SegmentPool] = SegmentPool
    # Instances are workers that keep the executor's segments for their responses.
    granted: bool = False


class _Run:
    """A batch that an instance has begun: it reads the inputs until it has ended."""

    def __init__(self, batch: pb.Batch, shared: SharedTensors) -> None:
        self.batch = batch
        (member,) = batch.members
        self.number = member.id
        (payload,) = member.payloads
        # None: it is lost.
        self.input: Any = None
        if not payload.HasField("shared_memory"):
            self.input = payload.inline
        else:
            with suppress(Unavailable):
                self.input = shared.view(payload.shared_memory)


class _Instance(InstanceWire):
    """An instance's thread at the executor, and its stream."""

    def __init__(self, world: LeaseWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.lender = world.parts.lender(world.shared)
        self.run: _Run | None = None
        self._open()

    def _open(self) -> None:
        self.ended = False
        world = self.world
        self.outputs = OutputSegments(
            self._grant, lambda: False, self._return_buffers, idle_s=math.inf
        )
        self.connect(world.loop, world.model, self.number, f"i{self.number}")
        world.loop.run(world.model.pool.roster.add, self.instance)

    def describe(self, batch: pb.Batch) -> str:
        return f"execute {world_number(self.world, batch.members[0].id)}"

    def actions(self) -> Iterator[Action]:
        """Its own steps."""
        if self.run is None:
            yield from self.batches.arrivals()
        else:
            yield Action(self.name, f"{self.name} has executed", self._end)
        if self.ended and self.run is None:
            yield Action(self.name, f"{self.name} comes back", self._reconnect)

    def stream_actions(self) -> Iterator[Action]:
        """The scheduler's."""
        yield from self.replies.arrivals()
        if self.batches.broken and not self.ended:
            yield Action("streams", f"{self.name} is lost", self._lose)

    def _grant(self, request: tuple[int, int, bool]) -> None:
        """The executor's part, which its own order with anything else does not matter for."""
        number, size_bytes, granted = request
        assert granted
        self.outputs.on_output_buffer(number, [*(self.lender.grant_buffer(size_bytes) or ())])

    def _return_buffers(self, segment_names: list[str]) -> None:
        for segment_name in segment_names:
            self.lender.end_grant(segment_name)

    def _lend(self, content: bytes) -> Iterable[Any]:
        if not self.world.parts.granted:
            return self.lender.lend([content]) or ()
        return self.outputs.write([content])[1]

    def on_batch(self, message: Any) -> None:
        self.run = _Run(pb.Batch.FromString(message.body), self.world.shared)

    def _end(self) -> None:
        assert self.run is not None
        run, self.run = self.run, None
        number = world_number(self.world, run.number)
        response = pb.InferResponse(head=b"head")
        if run.input is None:
            response.error.code, response.error.message = Unavailable.code, "lost"
        else:
            assert _same(run.input, _content(number)), f"{self.name} read a reused segment"
            ((name, offset, size_bytes),) = self._lend(_content(number))
            memory = pb.SharedMemory(segment_name=name, offset=offset, size_bytes=size_bytes)
            response.payloads.add(shared_memory=memory)
        self.lender.lent.clear()
        reply = pb.Executed(id=run.batch.id, responses=[response])
        self.reply(reply.SerializeToString(), f"executed {number}")

    def _lose(self) -> None:
        self.ended = True
        self.world.loop.run(self.world.model.pool.lose_instance, self.instance, "its stream broke")

    def _reconnect(self) -> None:
        self.lender.discard_lent()
        self.outputs.close()
        self._open()


def world_number(world: LeaseWorld, request_id: int) -> int:
    number: int = request_id - world.first_id
    return number


class LeaseWorld(World):
    """A client with large tensors, a gateway, a scheduler, and an executor with two instances."""

    def __init__(self, parts: Parts, requests: int, window: int) -> None:
        """window: how many of the requests the client has open."""
        self.parts = parts
        self.requests, self.window = requests, window
        self.used: set[str] = set()
        self.session_open = True
        # An instance, or the client, goes on when nothing else can happen.
        self.stalled: object = None
        self.link_broken = self.link_noticed = False
        self.pendings: dict[int, Any] = {}
        self.responses: dict[int, list[InferResponse]] = {}
        self.reading: dict[int, Any] = {}
        self.cancelled: set[int] = set()
        self.gateway = VirtualLoop("gateway")
        self.loop = VirtualLoop("scheduler")
        # The executor: commands are no channel of an instance's.
        self.shared = parts.shared(_LIMIT)
        self.shared.segments = parts.executor_pool(_LIMIT, writable=True)
        self.commands = Channel("commands", self._on_command)
        self.hello = pb.Hello(
            name="e", shm_namespace=self.shared.domain, process=self.shared.process
        )
        # The scheduler.
        self.to_scheduler = Channel("to scheduler", self._on_request)
        self.to_gateway = Channel("to gateway", self._on_response)
        self.loop.run(self._start_scheduler)
        self.instances = [_Instance(self, number) for number in range(_INSTANCES)]
        # The gateway.
        self.memory = parts.memory(_LIMIT)
        self.memory.segments = parts.gateway_pool(_LIMIT)
        self.gateway.run(self._start_gateway)

    def _start_scheduler(self) -> None:
        self.owners = SegmentOwners(self.shared.domain)
        self.owners.add_owner(self)
        self.model = ModelVersion(_MODEL, 1, VersionContext(segment_owners=self.owners))
        catalogue = Catalogue()
        serve(catalogue, runtime=self.model)
        self.admission = Admission(catalogue, LoadQueue(10.0, 2))
        self._open_session()

    def _open_session(self) -> None:
        self.session = self.parts.session(self.admission, self.owners, self.shared.domain)
        self.session.link = _SessionLink(self)

    def _start_gateway(self) -> None:
        self.up = True

        def open_link(**callbacks: Any) -> Any:
            self.callbacks = callbacks
            self.link = _ClientLink(self, callbacks["on_items"])
            callbacks["on_up"]()
            return self.link

        self.client = OnlySchedulerRouter(open_link, self.memory, 1e9, IGNORE)
        self.client.pending = self.parts.table(self.memory, self.client)
        self.first_id = self.client.pending.last_id + 1
        self.memory.start(self.client.pending.release_segments)
        self.memory._cleanup_timer.cancel()  # type: ignore[union-attr]
        self.client.open()
        self._greet()

    def _greet(self) -> None:
        self.callbacks["on_items"]([CachedModels((), self.shared.domain)])

    # ---- the wire

    def send(self, command: pb.ExecutorCommand) -> None:
        """To the executor."""
        kind = "discard" if command.release.discard else "free"
        self.commands.send(Message(command.SerializeToString(), kind))

    def _on_command(self, message: Any) -> None:
        self.shared.release_segments(pb.ExecutorCommand.FromString(message.body).release)

    def _on_request(self, message: Any) -> None:
        self.loop.run(self.session.on_items, RequestCodec().decode(message.body))

    def _on_response(self, message: Any) -> None:
        items = ResponseCodec().decode(message.body)
        self.gateway.run(self.link.on_items, items)

    # ---- steps

    def actions(self) -> Iterable[Action]:
        waiting = len(self.responses)
        open_count = sum(not each for each in self.responses.values()) - len(
            [n for n in self.cancelled if not self.responses[n]]
        )
        if waiting < self.requests and open_count < self.window:
            yield Action("client", f"request {waiting}", partial(self._submit, waiting))
        yield from self.gateway.turns()
        yield from self.loop.turns()
        yield from self.to_scheduler.arrivals()
        for each in self.instances:
            yield from each.stream_actions()
            if each is not self.stalled:
                yield from each.actions()
        yield from self.to_gateway.arrivals()
        yield from self.commands.arrivals()
        if self.stalled is not self:
            yield from self._reads()
        yield from (each for each in self.loop.timeouts() if "Orphaned" in each.text)
        if self.link_broken:
            if not self.link_noticed:
                yield Action("link", "the gateway sees the link's end", self._see_link_end)
            if self.session_open:
                yield Action("link", "the scheduler sees the link's end", self._end_session)
            if self.link_noticed and not self.session_open:
                yield Action("link", "the link comes up", self._reconnect)
        if isinstance(self.stalled, _Instance):
            yield from self.stalled.actions()
        elif self.stalled is self:
            yield from self._reads()
        for number, responses in self.responses.items():
            if not responses and number not in self.cancelled:
                yield Action(
                    "client",
                    f"{number} is cancelled",
                    partial(self._cancel, number),
                    disruption=True,
                )
        if "link" not in self.used and not self.link_broken:
            yield Action("link", "the link breaks", self._break_link, disruption=True)
        if "stream" not in self.used:
            for each in self.instances:
                if each.run is not None or each.batches.messages or each.replies.messages:
                    text = f"{each.name}'s stream breaks"
                    yield Action("link", text, partial(self._break_stream, each), disruption=True)

        if self.stalled is None:
            yield Action(
                "client", "the client stands still", partial(self._stall, self), disruption=True
            )
            for each in self.instances:
                if each.run is not None and not each.batches.broken:
                    text = f"{each.name} stands still"
                    yield Action("client", text, partial(self._stall, each), disruption=True)

    def _reads(self) -> Iterator[Action]:
        for number in self.reading:
            yield Action("client", f"the client has read {number}", partial(self._read, number))

    def _stall(self, who: object) -> None:
        self.stalled = who

    def _submit(self, number: int) -> None:
        self.responses[number] = []
        request = InferRequest(0, _HEAD, [_content(number)])
        self.memory.stage(request)

        def infer() -> None:
            self.pendings[number] = self.client.pending.infer(request, partial(self._keep, number))

        self.gateway.run(infer)

    def _keep(self, number: int, response: InferResponse) -> None:
        self.responses[number].append(response)
        if response.error is None:
            self.reading[number] = response.payloads
            response.payloads = []

    def _read(self, number: int) -> None:
        (payload,) = self.reading[number]
        assert _same(payload, _content(number)), f"the client read another response than {number}"
        del payload
        # What sees the last view's end is the gateway's.
        self.gateway.run(self.reading.__delitem__, number)

    def _cancel(self, number: int) -> None:
        self.cancelled.add(number)
        self.gateway.run(self.pendings[number].cancel)

    def _break_link(self) -> None:
        self.used.add("link")
        self.link_broken = True
        self.link_noticed = False
        self.to_gateway.close()
        self.to_scheduler.close()

    def _see_link_end(self) -> None:
        self.link_noticed = True
        self.gateway.run(self.callbacks["on_down"])

    def _end_session(self) -> None:
        self.session_open = False
        self.loop.run(self.session.on_down)

    def _reconnect(self) -> None:
        self.link_broken, self.session_open = False, True
        self.to_gateway.broken = self.to_scheduler.broken = False
        self.loop.run(self._open_session)
        self.gateway.run(self._greet)
        self.gateway.run(self.callbacks["on_up"])

    def _break_stream(self, instance: _Instance) -> None:
        self.used.add("stream")
        instance.break_stream()

    def close(self) -> None:
        """Return its memory and its descriptors to the system."""
        self.reading.clear()
        for instance in self.instances:
            instance.run = None
        for pool in (self.memory.segments, self.shared.segments):
            for name in [*pool._taken]:
                pool.discard(name)
            pool.trim(-1.0)
        self.memory.close()
        self.memory._mappings._open.clear()
        self.shared._mappings._open.clear()

    # ---- what holds

    def check(self) -> None:
        for number, responses in self.responses.items():
            assert len(responses) + (number in self.cancelled) <= 1, f"{number} has ended twice"

    def check_at_rest(self) -> None:
        for number, responses in self.responses.items():
            assert len(responses) + (number in self.cancelled) == 1, f"{number} has not ended"
            assert all(each.error is None for each in responses), f"{number} has failed"
        assert len(self.responses) == self.requests
        assert self.model.dispatcher.pending == 0
        assert not self.session._lent, "the scheduler waits for a release"
        assert self.memory.segments.used_count == 0, "a request's segment is never returned"
        assert self.shared.segments.used_count == 0, "a response's segment is never returned"

    def fingerprint(self) -> Hashable:
        names: dict[str, int] = {}

        def number_of(name: str) -> int:
            return names.setdefault(name, len(names))

        def texts(channel: Channel) -> tuple[str, ...]:
            return tuple(map(str, channel.messages))

        pendings = []
        for number, pending in self.pendings.items():
            lease = pending.request.lease
            pendings.append(
                (
                    number,
                    None if lease is None else number_of(lease.segment.name),
                    pending.request.resent,
                    len(self.responses[number]),
                    number in self.cancelled,
                    number in self.reading,
                )
            )
        return (
            tuple(pendings),
            tuple(
                (
                    None if each.run is None else world_number(self, each.run.number),
                    each.batches.broken,
                    each.ended,
                    texts(each.batches),
                    texts(each.replies),
                    each.instance.batches.first is not None,
                )
                for each in self.instances
            ),
            tuple(texts(each) for each in (self.commands, self.to_gateway, self.to_scheduler)),
            tuple(
                (world_number(self, entry.request.id), entry.state, entry.retries)
                for entry in self.model.requests.entries
            ),
            tuple(number_of(each) for each in self.memory.segments._taken),
            tuple(number_of(each.name) for each in self.memory.segments._free),
            tuple(sorted(number_of(each) for each in self.shared.segments._taken)),
            tuple(
                tuple((number_of(granted.memory.segment_name), granted.state) for granted in each)
                for each in (instance.outputs._granted for instance in self.instances)
            ),
            len(self.shared.segments._free),
            (self.link_broken, self.link_noticed, self.session_open, frozenset(self.used)),
            self.stalled is self or getattr(self.stalled, "name", None),
            (len(self.session._lent), self.session.pending, len(self.admission.orphans)),
            (len(self.gateway.ready), len(self.loop.ready)),
        )


class _ClientLink:
    """The gateway's end. Fulfils SchedulerLink."""

    def __init__(self, world: LeaseWorld, on_items: Any) -> None:
        self.up = True
        self.on_items = on_items
        self._world = world

    def send(self, item: Any, at_once: bool = False) -> None:
        text = type(item).__name__
        if isinstance(item, InferRequest):
            text = f"request {world_number(self._world, item.id)}"
        self._world.to_scheduler.send(Message(RequestCodec().encode([item]), text))

    def close(self) -> None:
        """Do nothing."""


class _SessionLink:
    """The scheduler's end. Fulfils GatewayLink."""

    def __init__(self, world: LeaseWorld) -> None:
        self._world = world

    def send(self, item: InferResponse, at_once: bool = False) -> None:
        text = f"response {world_number(self._world, item.id)}"
        self._world.to_gateway.send(Message(ResponseCodec().encode([item]), text))


class _Worlds:
    """Makes them one after the other."""

    def __init__(self, parts: Parts, requests: int = 3, window: int = 2) -> None:
        self._args = parts, requests, window
        self._last: LeaseWorld | None = None

    def __call__(self) -> LeaseWorld:
        if self._last is not None:
            self._last.close()
        self._last = LeaseWorld(*self._args)
        return self._last


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


WORLDS: dict[str, Callable[[], World]] = {
    "two requests": _Worlds(Parts(), 2, 1),
    "three requests": _Worlds(Parts()),
    "two requests, granted": _Worlds(Parts(granted=True), 2, 1),
    "three requests, granted": _Worlds(Parts(granted=True)),
}


# With as many reorderings, workers that keep segments take as long again.
_BOUNDS = (2, 1, 1, 1)


@pytest.mark.parametrize(
    ("world", "reorderings"),
    [
        *zip(WORLDS, _BOUNDS, strict=True),
        pytest.param("two requests, granted", 2, marks=pytest.mark.nightly),
    ],
)
def test_no_segment_is_reused_while_it_may_be_read(world: str, reorderings: int) -> None:
    found = explore(WORLDS[world], reorderings=reorderings)
    assert found.failure is None, found.failure
    assert found.complete


@pytest.mark.parametrize("granted", [False, True])
def test_no_segment_is_reused_in_random_orders(granted: bool) -> None:
    found = explore_random(_Worlds(Parts(granted=granted)), seeds=range(150))
    assert found.failure is None, found.failure


# ---- deliberate defects


class _NeverDiscards(SegmentPool):
    """What may still be read is used again."""

    discard = SegmentPool.free_segment

    def discard_segments_of(self, user: object) -> None:
        for name in [each.name for each in self._taken.values() if each.user is user]:
            self.free_segment(name)


class _FreesWhatIsDiscarded(SegmentPool):
    """A granted segment that may still be read is written to again."""

    def discard(self, name: str) -> None:
        segment = self._taken.get(name)
        if segment is None or not segment.granted:
            super().discard(name)
        else:
            self.free_segment(name)

    def discard_segments_of(self, user: object) -> None:
        for name in [each.name for each in self._taken.values() if each.user is user]:
            self.discard(name)


class _ByPosition(SegmentPool):
    """Whatever segment is returned, it is taken for the oldest one."""

    def free_segment(self, name: str) -> None:
        if self._taken:
            super().free_segment(next(iter(self._taken)))


class _ReleasesAtOnce(TensorMemory):
    """A response's segment is released when it is opened."""

    def open_response(self, response: InferResponse) -> None:
        super().open_response(response)
        self._on_unread(response.segment_name)


class _ForgetsLent(GatewaySession):
    """The scheduler does not know what it has lent to the gateway."""

    def _lend_segment(self, response: InferResponse) -> InferResponse:
        response = super()._lend_segment(response)
        self._lent.discard(response.segment_name)
        return response


class _ReturnsWithoutDiscard(GatewaySession):
    """What a lost gateway has is returned as if it had read it."""

    def on_down(self) -> None:
        self._segment_owners.return_segments(self._lent)
        self._lent.clear()
        super().on_down()


class _FreesOnCancel(PendingRequests):
    """A cancelled request's segment is used again at once."""

    def cancel(self, request_id: int) -> None:
        pending = self.requests.get(request_id)
        if pending is not None and pending.request.lease is not None:
            pending.request.lease.free()
        super().cancel(request_id)


class _FreesAfterRetry(PendingRequests):
    """The response of a second instance frees what the first one may still read."""

    def on_items(self, link: Any, items: list[Any]) -> None:
        for item in items:
            if isinstance(item, InferResponse):
                item.inputs_in_use = False
        super().on_items(link, items)


class _FreesAfterResending(_FreesAfterRetry):
    """Of a request with two runs, the first one's end frees the segment."""

    def on_items(self, link: Any, items: list[Any]) -> None:
        for item in items:
            pending = self.requests.get(item.id)
            if pending is not None:
                pending.request.resent = False
        super().on_items(link, items)


class _KeepsLent(OutputLender):
    """A broken stream leaves what was lent on it."""

    def discard_lent(self) -> None:
        """Do nothing."""


_DEFECTS = {
    "a request's segment is never discarded": Parts(gateway_pool=_NeverDiscards),
    "a response's segment is never discarded": Parts(executor_pool=_NeverDiscards),
    "a granted segment is never discarded": Parts(
        executor_pool=_FreesWhatIsDiscarded, granted=True
    ),
    "granted, returned by position": Parts(executor_pool=_ByPosition, granted=True),
    "granted, released too early": Parts(memory=_ReleasesAtOnce, granted=True),
    "returned by position": Parts(executor_pool=_ByPosition),
    "released too early": Parts(memory=_ReleasesAtOnce),
    "forgotten by the scheduler": Parts(session=_ForgetsLent),
    "no fence when the gateway is lost": Parts(session=_ReturnsWithoutDiscard),
    "freed by cancelling": Parts(table=_FreesOnCancel),
    "freed by one of two runs": Parts(table=_FreesAfterResending),
    "freed by a retry's response": Parts(table=_FreesAfterRetry),
    "left by a broken stream": Parts(lender=_KeepsLent),
}


@pytest.mark.skipif(is_compiled(), reason="compiled classes cannot be extended")
@pytest.mark.parametrize("name", _DEFECTS)
def test_deliberate_defects_are_found(name: str) -> None:
    assert explore(_Worlds(_DEFECTS[name], 2, 1), reorderings=2).failure is not None
