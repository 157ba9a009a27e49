"""A gateway's links to one scheduler and to two, which leave, die and come back. The machines of
both ends, and the links between them, are the product's; the streams that they go over break.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Unavailable
from nereid.core.methods import SHM_NAMESPACE_KEY
from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import (
    CachedModels,
    Cancel,
    ErrorStatus,
    FlowControl,
    InferRequest,
    InferResponse,
    MovedResponse,
    Ownership,
    Release,
    moved_response,
)
from nereid.mesh_routing.access import dial_scheduler
from nereid.mesh_routing.router.only_scheduler import OnlySchedulerRouter
from nereid.mesh_routing.router.pending_requests import PendingRequests
from nereid.mesh_routing.router.route import Route
from nereid.mesh_routing.several.mesh_router import MeshRouter
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.shm.mappings import SegmentLostError
from nereid.shm.reference import SharedMemory
from nereid_scheduler.admission.admission import Admission, stopping_response
from nereid_scheduler.admission.gateway_links import GatewayLinks
from nereid_scheduler.admission.gateway_session import GatewaySession
from nereid_scheduler.admission.orphaned_requests import OrphanedRequests
from nereid_scheduler.core.models.model_owners import ONE_OWNER
from nereid_scheduler.core.requests.entry import EXECUTING, QUEUED, RESPONDED, Entry
from nereid_scheduler.core.requests.load_queue import LoadQueue
from nereid_scheduler.core.requests.segment_owners import SegmentOwners
from nereid_scheduler.placement.models.catalogue import Catalogue
from nereid_scheduler.versions.validation.request_validation import Validator
from tests.protocols.explorer import Action, Channel, World, explore, explore_random
from tests.protocols.message import Message
from tests.protocols.virtual_loop import VirtualLoop
from tests.support.forms import pure_only
from tests.support.mesh.fake_link import IGNORE
from tests.support.scheduler.samples import head_of, model_of
from tests.support.scheduler.world import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

pytestmark = pure_only

_MODEL = model_of(
    """
    input { name: "I" data_type: TYPE_UINT8 dims: 1 }
    output { name: "O" data_type: TYPE_UINT8 dims: 1 }
    """
)
_HEAD = head_of([("I", "UINT8", [1])])
_DOMAIN = "host"
_LIMIT_S = 1000.0
# How many of the requests the client has open, unless schedulers are slow.
_AT_ONCE = 2
_REQUESTS, _RESPONSES = RequestCodec(), ResponseCodec()


@dataclass(frozen=True)
class Mesh:
    """What is explored. responses: to each request. shared: they lie in shared memory.
    disruptions: what may happen, once or twice each. turns: those of event loops are steps, so that
    frames have many items; otherwise nothing comes between an event and its turns.
    """

    schedulers: int = 1
    requests: int = 2
    responses: int = 1
    instances: int = 1
    at_most_once: bool = False
    shared: bool = False
    disruptions: str = "cancel pause break silence end lose"
    turns: bool = True


class _Loop(VirtualLoop):
    """One whose turns are steps, or not."""

    def __init__(self, name: str, *, turns: bool) -> None:
        super().__init__(name)
        self._settled = turns

    def run(self, callback: Callable[..., Any], *args: Any) -> Any:
        result = super().run(callback, *args)
        if not self._settled:
            self._settled = True
            while self.ready:
                self._turn()
            self._settled = False
        return result


class _Tensors:
    """A TensorSharing without memory: it counts the segments that are read."""

    def __init__(self) -> None:
        self.shared = False
        self.reading: list[str] = []
        self.lost: set[str] = set()

    def on_scheduler_domain(self, domain: str) -> None:
        self.shared = domain == _DOMAIN

    def make_inline(self, request: InferRequest) -> None:
        """Do nothing: it is."""

    def open_response(self, response: InferResponse) -> None:
        if response.segment_name in self.lost:
            raise SegmentLostError(response.segment_name)
        self.reading.append(response.segment_name)

    def lost_response(self, response: InferResponse) -> InferResponse:
        self.reading.append(response.segment_name)
        return InferResponse(response.id, error=ErrorStatus(Unavailable.code, "lost"))


@dataclass(eq=False)
class _Copy:
    """A request that was handed to a link."""

    wire: _Wire
    resent: bool
    returned: bool = False
    responded: bool = False


class _Wire:
    """A stream over which a link goes: the ends of both, and what is on its way."""

    def __init__(self, world: LinkWorld, address: str, callbacks: dict[str, Any]) -> None:
        self.world, self.address, self.callbacks = world, address, callbacks
        self.process: _Process | None = None
        self.call: _Call | None = None
        # Who has not seen yet that it has ended.
        self.dialled, self.accepted = True, False
        self.broken = False
        # The scheduler sees its end when nothing else happens.
        self.silent = False
        self.blocked: set[str] = set()
        earlier = sum(each.address == address for each in world.all_wires)
        name = f"{address}{f', link {earlier + 1}' if earlier else ''}"
        self.to_scheduler = Channel(f"to {name}", self._on_request)
        self.to_gateway = Channel(f"from {name}", self._on_response)

    # ---- the gateway's end: a StreamHandle

    @property
    def buffered_bytes(self) -> int:
        return int("gateway" in self.blocked)

    def send(self, frame: bytes) -> None:
        self.to_scheduler.send(Message(frame, self.world.texts(_REQUESTS.decode(frame))))

    def half_close(self) -> None:
        self.dialled = False
        self.to_gateway.close()
        if self.process is not None:
            self.to_scheduler.send("the end")

    # ---- what happens

    def actions(self) -> Iterator[Action]:
        live = self.world.live(self.address)
        if self.process is None and self.dialled and live is not None:
            accept = partial(self._accept, live)
            yield Action(self.to_scheduler.name, f"{live} accepts a link", accept)
        yield from self.to_scheduler.arrivals()
        yield from self.to_gateway.arrivals()
        if self.broken and self.dialled:
            yield Action(self.to_gateway.name, f"the gateway sees {self}'s end", self._see_end)
        if self.broken and not self.silent:
            yield from self.ends()
        for end in sorted(self.blocked):
            yield Action(f"{self}", f"{end} can write over {self} again", partial(self._free, end))

    def ends(self) -> Iterator[Action]:
        if self.broken and self.accepted:
            yield Action(self.to_scheduler.name, f"{self.process} sees {self}'s end", self._end)

    def _accept(self, process: _Process) -> None:
        self.process, self.accepted = process, True
        self.call = _Call(self)
        process.loop.run(process.links.accept_call, self.call)

    def _on_request(self, message: Any) -> None:
        assert self.call is not None
        assert self.process is not None
        if message == "the end":
            self.accepted = False
            self.process.loop.run(self.call.on_half_close)
        else:
            self.process.loop.run(self.call.on_message, message.body)

    def _on_response(self, message: Any) -> None:
        gateway = self.world.gateway
        if message == "it is open":
            gateway.run(self.callbacks["on_open"])
        elif message == "the end":
            self._see_end()
        else:
            gateway.run(self.callbacks["on_message"], message.body)

    def _see_end(self) -> None:
        self.dialled = False
        self.to_gateway.close()
        self.to_scheduler.close()
        self.world.gateway.run(self.callbacks["on_close"], None)

    def _end(self) -> None:
        assert self.call is not None
        assert self.process is not None
        self.accepted = False
        self.process.loop.run(self.call.on_cancel)

    def _free(self, end: str) -> None:
        self.blocked.remove(end)
        if end == "gateway":
            self.world.gateway.run(self.callbacks["on_writable"])
        elif self.call is not None and self.process is not None:
            self.process.loop.run(self.call.on_writable)

    def break_(self, *, silent: bool = False) -> None:
        self.broken, self.silent = True, silent
        self.to_gateway.close()
        self.to_scheduler.close()

    def lose_process(self) -> None:
        """What the scheduler had sent still arrives."""
        self.accepted = False
        self.to_scheduler.close()
        self.to_gateway.send("the end")

    def __str__(self) -> str:
        return f"the link to {self.process or self.address}"


class _Call:
    """The scheduler's end. Fulfils what accept_link and GatewayLinks need of a Call."""

    peer_is_local = True
    done = False
    on_message: Any
    on_half_close: Any
    on_cancel: Any
    on_writable: Any

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    @property
    def buffered_bytes(self) -> int:
        return int("scheduler" in self._wire.blocked)

    def get(self, key: str) -> str | None:
        return _DOMAIN if key == SHM_NAMESPACE_KEY else None

    def accept(self) -> None:
        self._wire.to_gateway.send("it is open")

    def send(self, frame: bytes) -> None:
        text = self._wire.world.texts(_RESPONSES.decode(frame))
        self._wire.to_gateway.send(Message(frame, text))

    def finish(self) -> None:
        self._wire.accepted = False
        self._wire.to_gateway.send("the end")


class _Channel:
    """To the scheduler at an address, whichever process it is. Fulfils what dial_link needs."""

    def __init__(self, world: LinkWorld, address: str) -> None:
        self._world, self._address = world, address

    def stream(self, _path: str, *, metadata: object, **callbacks: Any) -> _Wire:
        wire = self._world.wires[self._address] = _Wire(self._world, self._address, callbacks)
        self._world.all_wires.append(wire)
        return wire


class _WatchedLink:
    """The gateway's link, and what is sent over it. Fulfils SchedulerLink."""

    def __init__(self, world: LinkWorld, address: str, callbacks: dict[str, Any]) -> None:
        self._world, self._address = world, address
        self._on_items = callbacks["on_items"]
        channel: Any = _Channel(world, address)
        open_link = dial_scheduler(channel, _DOMAIN)
        self._link: Any = open_link(**{**callbacks, "on_items": self._deliver})

    @property
    def up(self) -> bool:
        return bool(self._link.up)

    def _deliver(self, items: list[Any]) -> None:
        for item in items:
            if isinstance(item, InferResponse):
                self._world.on_arrived(item, self._world.wires[self._address])
        try:
            self._on_items(items)
        except Exception as error:
            self._world.error = error
            raise

    def send(self, item: Any, at_once: bool = False) -> None:
        if self._link.up and isinstance(item, InferRequest):
            self._world.on_sent(item, self._world.wires[self._address])
        self._link.send(item, at_once=at_once)

    def close(self) -> None:
        self._link.close()


class _Model:
    """What executes requests one by one: a model version whose instance is part of the story."""

    decoupled: bool

    def __init__(self, world: LinkWorld, process: _Process) -> None:
        self._world, self._process = world, process
        self.decoupled = world.mesh.responses > 1
        self._validator = Validator(_MODEL)
        self.queued: list[Entry] = []
        # With the number of their responses.
        self.running: dict[Entry, int] = {}
        self.paused: set[Entry] = set()

    def submit(self, request: InferRequest, on_response: Any) -> Entry:
        entry = self._validator.make_entry(request, on_response, self, 0)
        entry.state = QUEUED
        self.queued.append(entry)
        return entry

    def cancel(self, entry: Entry) -> None:
        if entry.state is RESPONDED:
            return
        if entry in self.queued:
            self.queued.remove(entry)
        entry.state = RESPONDED

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        (self.paused.add if paused else self.paused.discard)(entry)

    def is_blocked(self, _: Entry) -> bool:
        return False

    def return_entry(self, entry: Entry, response: InferResponse) -> None:
        self.queued.remove(entry)
        entry.state = RESPONDED
        entry.respond(response)

    def fail_running(self) -> None:
        running, self.running = self.running, {}
        for entry in running:
            if entry.state is not RESPONDED:
                entry.state = RESPONDED
                self._world.failed.add(entry.request.id)
                entry.respond(InferResponse(0, error=ErrorStatus(Unavailable.code, "stopping")))

    def return_queued(self) -> None:
        for entry in list(self.queued):
            self.return_entry(entry, moved_response(entry.request.id))

    def actions(self) -> Iterator[Action]:
        process = self._process
        if self.queued and len(self.running) < self._world.mesh.instances:
            text = f"{process} begins {self._world.number_of(self.queued[0].request.id)}"
            yield Action(f"{process}", text, self._begin)
        for number, entry in enumerate(self.running):
            if entry not in self.paused or entry.state is RESPONDED:
                text = f"{process} responds to {self._world.number_of(entry.request.id)}"
                yield Action(f"{process}, instance {number}", text, partial(self._respond, entry))

    def _begin(self) -> None:
        entry = self.queued.pop(0)
        self.running[entry] = 0
        entry.state = EXECUTING
        alike = [each for each in self.running if each.request.id == entry.request.id]
        assert all(each.state is RESPONDED for each in alike if each is not entry), (
            "a request runs beside itself"
        )
        self._world.on_begun(entry.request)

    def _respond(self, entry: Entry) -> None:
        index = self.running[entry]
        self.running[entry] += 1
        more = index + 1 < self._world.mesh.responses
        if not more or entry.state is RESPONDED:
            del self.running[entry]
        if entry.state is RESPONDED:
            return
        content: Any = bytes([index])
        if self._world.mesh.shared:
            content = SharedMemory(self._process.lend(), 0, 1)
        response = InferResponse(0, b"%d" % self._process.number, [content], more=more)
        if isinstance(content, SharedMemory):
            response.segment_name = content.segment_name
        if not more:
            entry.state = RESPONDED
            self.paused.discard(entry)
        self._process.loop.run(entry.respond, response)


class _Process:
    """A scheduler, from its start to its end. Also the executor that lends it segments."""

    def __init__(self, world: LinkWorld, address: str) -> None:
        self.world, self.address = world, address
        self.number = next(world.numbers)
        self.leaving = False
        self.rank = 0
        self.hello = pb.Hello(name="e", shm_namespace=_DOMAIN, process=f"{self.number}")
        self.segments = count()
        self.lent: set[str] = set()
        self.loop = _Loop(str(self), turns=world.mesh.turns)
        self.model = _Model(world, self)
        self.loop.run(self._start)

    def __str__(self) -> str:
        return f"{self.address}{self.number}"

    def _start(self) -> None:
        several = self.world.mesh.schedulers > 1
        self.owners = SegmentOwners(_DOMAIN)
        if self.world.mesh.shared:
            self.owners.add_owner(self)
        self.catalogue = Catalogue()
        has_moved = self._has_moved if several else ONE_OWNER.has_moved
        self.admission = self.world.parts.admission(
            self.catalogue, LoadQueue(10.0, 0), has_moved=has_moved
        )
        self.admission.orphans = self.world.parts.orphans(10.0)
        self.links = self.world.parts.links(self.admission, self.owners, self._notices)
        self.links.start()
        if not several:
            self._load()

    def _load(self) -> None:
        draft = model_config_pb2.ModelConfig()
        if self.world.mesh.at_most_once:
            draft.parameters["at_most_once"].string_value = "true"
        serve(self.catalogue, draft=draft, runtime=self.model)
        self.admission.models_changed()

    @property
    def has_model(self) -> bool:
        return self.catalogue.model("m") is not None

    def _has_moved(self, _: str) -> bool:
        return self.leaving or not self.has_model

    # ---- notices

    def _notices(self, shares: bool) -> Iterator[Any]:
        yield CachedModels((), _DOMAIN if shares else "")
        if self.world.mesh.schedulers > 1:
            yield self._owned()

    def _owned(self) -> Ownership:
        models = ("m",) if self.has_model and not self.leaving else ()
        return Ownership(self.address, self.rank, models, self.leaving)

    def take_model(self) -> None:
        self.world.epoch += 1
        self.rank = self.world.epoch
        self._load()
        self.links.send_notice(self._owned())

    def give_model(self) -> None:
        """To whoever takes it."""
        model = self.catalogue.model("m")
        assert model is not None
        self.catalogue.remove_model(model)
        self.admission.models_changed()
        self.model.return_queued()
        self.links.send_notice(self._owned())

    def leave(self) -> None:
        """As SchedulerService.drain."""
        self.leaving = True
        if self.world.mesh.schedulers > 1:
            self.links.send_notice(self._owned())
            self.model.return_queued()
        else:
            self.links.announce_leaving()
        self.admission.stop()

    # ---- the executor

    def lend(self) -> str:
        name = f"{self.number}.{next(self.segments)}"
        self.lent.add(name)
        return name

    def send(self, command: pb.ExecutorCommand) -> None:
        for name in command.release.segment_names:
            assert name in self.lent, "a segment is released twice"
            self.lent.remove(name)

    # ---- steps

    @property
    def idle(self) -> bool:
        return not self.model.running and not self.model.queued

    def end(self) -> None:
        """Once it has finished what it has."""
        for wire in self.wires():
            assert wire.call is not None
            # What its link has not written by now leaves with it.
            wire.blocked.discard("scheduler")
        for link in list(self.links._links.values()):
            link.close()
        self.kill()

    def hurry(self) -> None:
        """The limit of its drain passes: only what executes fails."""
        for entry in list(self.model.queued):
            self.loop.run(self.model.return_entry, entry, stopping_response(entry.request))
        self.loop.run(self.model.fail_running)
        self.end()

    def kill(self) -> None:
        for wire in self.wires():
            if wire.accepted:
                wire.lose_process()
            wire.accepted = False
        self.world.processes[self.address] = None

    def wires(self) -> Iterator[_Wire]:
        return (each for each in self.world.all_wires if each.process is self)


@dataclass(frozen=True)
class Parts:
    """The machines of both sides."""

    one: type[OnlySchedulerRouter] = OnlySchedulerRouter
    several: type[MeshRouter] = MeshRouter
    table: type[PendingRequests] = PendingRequests
    links: type[GatewayLinks] = GatewayLinks
    admission: type[Admission] = Admission
    orphans: type[OrphanedRequests] = OrphanedRequests


@dataclass(eq=False)
class _Asked:
    """A request, as its client sees it."""

    id: int
    pending: Any = None
    responses: list[InferResponse] = field(default_factory=list)
    cancelled: bool = False
    paused: bool = False
    copies: list[_Copy] = field(default_factory=list)
    begun: int = 0

    @property
    def ended(self) -> bool:
        return self.cancelled or (bool(self.responses) and not self.responses[-1].more)


class LinkWorld(World):
    """A gateway's client, and the schedulers."""

    def __init__(self, mesh: Mesh, parts: Parts) -> None:
        self.mesh, self.parts = mesh, parts
        self.numbers = count(1)
        self.epoch = 0
        self.used: Counter[str] = Counter()
        self.asked: list[_Asked] = []
        self.closed = self.limit_passed = False
        self.error: Exception | None = None
        # Ids of requests that a scheduler failed.
        self.failed: set[int] = set()
        self.gateway = _Loop("gateway", turns=mesh.turns)
        # By address, the stream that the gateway's link uses now.
        self.wires: dict[str, _Wire] = {}
        self.all_wires: list[_Wire] = []
        addresses = "ab"[: mesh.schedulers]
        self.processes: dict[str, _Process | None] = dict.fromkeys(addresses)
        for address in addresses:
            self.processes[address] = _Process(self, address)
        self.tensors = _Tensors()
        self.client: Any
        self.gateway.run(self._open_client)
        self.first_id = self.client.pending.last_id + 1
        if mesh.schedulers > 1:
            # Before the links are up: what comes first is explored with what comes again.
            first = self.processes["a"]
            assert first is not None
            first.loop.run(first.take_model)

    def _open_client(self) -> None:
        make: Any = partial(self.parts.several, self)
        if self.mesh.schedulers == 1:
            make = partial(self.parts.one, self.open_link("a"))
        self.client = make(self.tensors, _LIMIT_S, IGNORE, self.gateway)
        on_end = self.client.pending._on_end
        self.client.pending = self.parts.table(self.tensors, self.client, on_end)
        self.client.open()

    # ---- the Schedulers of a router

    def watch(self, on_addresses: Callable[[list[str]], None], _: object) -> None:
        on_addresses(list(self.processes))

    def open_link(self, address: str) -> Any:
        return partial(self._open_link, address)

    def _open_link(self, address: str, **callbacks: Any) -> _WatchedLink:
        return _WatchedLink(self, address, callbacks)

    def close_channel(self, _: str) -> None:
        """Do nothing."""

    # ---- what is watched

    def number_of(self, request_id: int) -> int:
        number: int = request_id - self.first_id
        return number

    def live(self, address: str) -> _Process | None:
        return self.processes[address]

    def on_sent(self, request: InferRequest, wire: _Wire) -> None:
        asked = self.asked[self.number_of(request.id)]
        self._expect(not asked.ended, "a request is sent that has ended")
        self._expect(not asked.responses, "a request is sent again that had a response")
        lost = [each for each in asked.copies if not each.returned]
        waits = [each for each in lost if each.wire.dialled and not each.responded]
        self._expect(not waits, "two schedulers have a request")
        if request.resent:
            self._expect(bool(lost), "a request is marked as resent that nobody can have begun")
        else:
            self._expect(not lost, "a request that may have begun is not marked as resent")
        asked.copies.append(_Copy(wire, request.resent))

    def on_arrived(self, response: InferResponse, wire: _Wire) -> None:
        copies = self.asked[self.number_of(response.id)].copies
        last = next((each for each in reversed(copies) if each.wire is wire), None)
        self._expect(last is not None, "a response over a link that had no request")
        assert last is not None
        last.responded = not response.more
        last.returned = isinstance(response, MovedResponse)

    def _expect(self, holds: bool, text: str) -> None:
        """Links and clients log what their callbacks raise, and go on."""
        if not holds:
            self.error = self.error or AssertionError(text)
            raise self.error

    def on_begun(self, request: InferRequest) -> None:
        asked = self.asked[self.number_of(request.id)]
        asked.begun += 1
        assert asked.begun == 1 or request.resent, "a request begins twice, and nobody knows"
        if self.mesh.at_most_once:
            assert asked.begun == 1, "a request begins twice"

    def texts(self, items: Iterable[Any]) -> str:
        return ", ".join(map(self._text, items))

    def _text(self, item: Any) -> str:
        match item:
            case InferRequest():
                return f"request {self.number_of(item.id)}{' again' if item.resent else ''}"
            case MovedResponse():
                return f"{self.number_of(item.id)} is returned"
            case InferResponse():
                kind = "response" if item.error is None else "error"
                return f"{kind} {self.number_of(item.id)}{' and more' if item.more else ''}"
            case Cancel():
                return f"cancel {self.number_of(item.id)}"
            case FlowControl():
                return f"{'pause' if item.paused else 'resume'} {self.number_of(item.id)}"
            case Release():
                return f"release {', '.join(item.segment_names)}"
            case Ownership():
                what = "leaves" if item.leaving else f"has {', '.join(item.models) or 'no model'}"
                return f"{item.scheduler or 'it'} {what}"
            case _:
                return "greeting"

    # ---- steps

    def actions(self) -> Iterable[Action]:
        submit = Action("client", f"request {len(self.asked)}", self._submit)
        may_submit = len(self.asked) < self.mesh.requests and not self.closed
        if may_submit and len(self.asked) < _AT_ONCE:
            yield submit
        yield from self.gateway.turns()
        for process in self._processes():
            yield from process.loop.turns()
        for wire in self.all_wires:
            yield from wire.actions()
        timeouts = list(self.gateway.timeouts())
        yield from (each for each in timeouts if "_open" in each.text)
        for process in self._processes():
            yield from process.model.actions()
        for name in self.tensors.reading:
            yield Action("reader", f"the client has read {name}", partial(self._read, name))
        if may_submit and len(self.asked) >= _AT_ONCE:
            yield submit
        yield from self._schedulers()
        for number, asked in enumerate(self.asked):
            if asked.paused:
                yield Action("client", f"resume {number}", partial(self._pause, asked, False))
        for wire in self.all_wires:
            if wire.silent:
                yield from wire.ends()
        # Gateways that do not come back: what ran for them is cancelled.
        for process in self._processes():
            yield from process.loop.timeouts()
        allowed = self.mesh.disruptions.split()
        yield from (each for each in self._disruptions() if each.actor in allowed)
        if "limit" in allowed:
            for each in timeouts:
                if "_open" not in each.text:
                    limit = partial(self._limit, each)
                    yield Action(each.actor, each.text, limit, disruption=True)

    def _schedulers(self) -> Iterator[Action]:
        """Their own steps."""
        for address, process in self.processes.items():
            if process is None:
                yield Action("mesh", f"{address} starts again", partial(self._start, address))
            elif process.leaving and process.idle:
                yield Action("mesh", f"{process} ends", process.end)
        heirs = [each for each in self._processes() if not each.leaving]
        if self.mesh.schedulers > 1 and heirs and not any(each.has_model for each in heirs):
            # Not the one that gave it, if there is another.
            heir = min(heirs, key=lambda each: each.rank)
            take = partial(heir.loop.run, heir.take_model)
            yield Action("mesh", f"{heir} takes the model", take)

    def _disruptions(self) -> Iterator[Action]:
        for number, asked in enumerate(self.asked):
            if not asked.ended and not self.used[f"cancel {number}"]:
                yield self._once(f"cancel {number}", partial(self._cancel, asked))
            if asked.responses and not asked.ended and not self.used[f"pause {number}"]:
                yield self._once(f"pause {number}", partial(self._pause, asked, True))
        if self.used["break"] < 2:
            for wire in self.wires.values():
                if wire.accepted and not wire.broken:
                    yield self._once("break", wire.break_, f"{wire} breaks")
        if not self.used["lose"]:
            for process in self._processes():
                if process.lent.difference(self.tensors.reading):
                    text = f"an executor of {process} dies"
                    yield self._once("lose", partial(self.tensors.lost.update, process.lent), text)
        if not self.used["silence"]:
            for wire in self.wires.values():
                if wire.accepted and not wire.broken:
                    text = f"{wire} breaks, and {wire.process} does not see it"
                    yield self._once("silence", partial(wire.break_, silent=True), text)
        if not self.used["block"]:
            for wire in self.wires.values():
                for end in ("gateway", "scheduler"):
                    if wire.accepted and not wire.broken and end not in wire.blocked:
                        text = f"{end} cannot write over {wire}"
                        yield self._once("block", partial(wire.blocked.add, end), text)
        if self.used["end"] < 2:
            for process in self._processes():
                if process.leaving:
                    yield self._once("end", process.hurry, f"{process} ends by its limit")
                else:
                    leave = partial(process.loop.run, process.leave)
                    yield self._once("end", leave, f"{process} leaves")
                yield self._once("end", process.kill, f"{process} dies")
                if self.mesh.schedulers > 1 and process.has_model and not process.leaving:
                    give = partial(process.loop.run, process.give_model)
                    yield self._once("end", give, f"{process} gives the model away")
        if self.asked and not self.closed:
            yield self._once("close", self._close, "the gateway ends")

    def _processes(self) -> Iterator[_Process]:
        return (each for each in self.processes.values() if each is not None)

    def _once(self, key: str, perform: Callable[[], object], text: str = "") -> Action:
        def act() -> None:
            self.used[key] += 1
            perform()

        return Action(key.split(maxsplit=1)[0], text or key, act, disruption=True)

    def _start(self, address: str) -> None:
        self.processes[address] = _Process(self, address)

    def _submit(self) -> None:
        asked = _Asked(self.first_id + len(self.asked))
        self.asked.append(asked)
        request = InferRequest(0, _HEAD, [b"x"], accepts_many=True)
        asked.pending = self.gateway.run(
            self.client.pending.infer, request, partial(self._on_response, asked), 1
        )
        assert asked.pending.request.id == asked.id

    def _on_response(self, asked: _Asked, response: InferResponse) -> None:
        self._expect(not asked.ended, "a response to a request that has ended")
        asked.responses.append(response)

    def _read(self, name: str) -> None:
        self.tensors.reading.remove(name)
        self.gateway.run(self.client.pending.release_segments, (name,))

    def _cancel(self, asked: _Asked) -> None:
        asked.cancelled = True
        asked.paused = False
        self.gateway.run(asked.pending.cancel)

    def _pause(self, asked: _Asked, paused: bool) -> None:
        asked.paused = paused
        self.gateway.run(partial(asked.pending.set_flow, paused=paused))

    def _close(self) -> None:
        self.closed = True
        self.gateway.run(self.client.close, Unavailable("the gateway ends"))

    def _limit(self, timer: Action) -> None:
        self.limit_passed = True
        timer.perform()

    # ---- what holds

    def check(self) -> None:
        if self.error is not None:
            raise self.error
        for number, asked in enumerate(self.asked):
            contents = [each for each in asked.responses if each.error is None]
            assert len({each.head for each in contents}) <= 1, f"{number} has responses of two runs"
            if not self.mesh.shared:
                indexes = [each.payloads[0][0] for each in contents]
                assert indexes == [*range(len(indexes))], f"{number} has the responses {indexes}"
            for each in asked.responses:
                assert each.error is None or self._may_fail(asked), f"{number}: {each.error}"
            assert asked.ended or asked.id in self.client.pending.requests, f"{number} is forgotten"
        if self.client.links_up:
            timers = [each.text for each in self.gateway.timeouts()]
            left = [each for each in timers if "no_scheduler" in each]
            assert not left, f"{left} may pass though a scheduler is connected"
        open_ = sum(not each.ended for each in self.asked)
        assert len(self.client.pending.requests) == self.client.pending.pending_bytes == open_

    def _may_fail(self, asked: _Asked) -> bool:
        """Whether a request that fails now fails by what was promised."""
        if self.closed or self.limit_passed or asked.id in self.failed:
            return True
        # It is sent once more where it runs at most once, or its response's memory is not real.
        again = asked.pending.request.resent and (self.mesh.at_most_once or self.mesh.shared)
        broken = any(self.used[each] for each in ("break", "silence", "end", "lose"))
        return bool(broken and (again or len(asked.responses) > 1))

    def check_at_rest(self) -> None:
        for number, asked in enumerate(self.asked):
            assert asked.ended, f"{number} has not ended"
        for process in self._processes():
            assert process.idle, f"{process} has requests"
            assert not process.lent, f"{process} waits for a release"
            assert not process.admission.orphans, f"{process} has requests of nobody"
            links = sum(each.accepted for each in process.wires())
            assert len(process.links) == links == (not self.closed), f"{process} has {links} links"
            for session in process.links.sessions:
                assert session.pending == 0, f"{process} waits for a response"
        assert not self.client.pending.waiting(), "a request waits"
        assert not self.client.pending._route_of_segment, "a segment is not released"
        if self.mesh.schedulers > 1:
            assert not self.client._held, "a request is held"
            assert not self.client._returns, "a request was returned"
        if self.mesh.schedulers > 1 and not self.closed:
            owner = self.client._table.owner("m")
            assert owner is not None
            named = self.processes[owner.address]
            assert named is not None
            assert named.has_model, "the gateway takes another for the owner"

    def fingerprint(self) -> Hashable:
        def texts(channel: Channel) -> tuple[str, ...]:
            return str(channel.broken), *map(str, channel.messages)

        def timers(loop: VirtualLoop) -> tuple[str, ...]:
            return tuple(each.text for each in loop.timeouts())

        requests = []
        for asked in self.asked:
            pending = asked.pending
            route = pending.route
            requests.append(
                (
                    len(asked.responses),
                    asked.ended,
                    asked.cancelled,
                    asked.paused,
                    pending.request.resent,
                    route and route.address,
                    tuple((e.wire.dialled, e.returned, e.responded) for e in asked.copies),
                    pending.lost_responses,
                    asked.begun,
                )
            )
        processes = []
        for each in self._processes():
            entries = [*each.model.queued, *each.model.running]
            processes.append(
                (
                    each.number,
                    each.leaving,
                    each.has_model,
                    each.rank,
                    tuple((self.number_of(e.request.id), e.state.value) for e in entries),
                    tuple(each.model.running.values()),
                    len(each.model.paused),
                    frozenset(each.lent),
                    timers(each.loop),
                    len(each.loop.ready),
                    tuple(
                        (
                            tuple(sorted(map(self.number_of, session._pending))),
                            frozenset(session._lent),
                            self.texts(link._items),
                        )
                        for session, link in each.links._links.items()
                    ),
                    tuple(map(self.number_of, each.admission.orphans._requests)),
                )
            )
        wires = [
            (
                each.address,
                each.process and each.process.number,
                (each.dialled, each.accepted, each.broken, each.silent),
                frozenset(each.blocked),
                texts(each.to_scheduler),
                texts(each.to_gateway),
            )
            for each in self.all_wires
            if each.dialled or each.accepted
        ]
        client = self.client
        router: tuple[Hashable, ...]
        if self.mesh.schedulers == 1:
            routes = [client._route]
            router = client.links_up, client._leaving
        else:
            routes = list(client._links)
            router = (
                *(
                    (str(key), each.live, each.leaving, each.rank, each.models)
                    for key, each in client._table._schedulers.items()
                ),
                *(state.announcements for state in client._links.values()),
                *map(self.number_of, client._held),
                *((self.number_of(each), it.count) for each, it in client._returns.items()),
            )
        segments = client.pending._route_of_segment
        table = (
            router,
            client._unreachable,
            tuple((name, str(route)) for name, route in segments.items()),
            tuple(self.texts(route._link._link._items) for route in routes),
        )
        return (
            tuple(requests),
            tuple(processes),
            tuple(wires),
            table,
            (tuple(self.tensors.reading), frozenset(self.tensors.lost)),
            frozenset(self.used.items()),
            (self.closed, self.limit_passed, self.epoch, len(self.failed)),
            (timers(self.gateway), len(self.gateway.ready)),
        )


def _world(parts: Parts = Parts(), **mesh: Any) -> Callable[[], World]:
    return partial(LinkWorld, Mesh(**mesh), parts)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


_SMALL: dict[str, Any] = {"requests": 1, "turns": False}
WORLDS: dict[str, Callable[[], World]] = {
    "one scheduler": _world(requests=3),
    "one, blocked writes": _world(disruptions="break block end"),
    "one, an end": _world(disruptions="break close limit", **_SMALL),
    "one, two responses": _world(responses=2, **_SMALL),
    "one, at most once": _world(at_most_once=True, instances=2, **_SMALL),
    "one, two instances": _world(instances=2, disruptions="silence break", **_SMALL),
    "one, shared memory": _world(shared=True, **_SMALL),
    "two schedulers": _world(schedulers=2, requests=3),
    "two, blocked writes": _world(schedulers=2, requests=1, disruptions="break block end"),
    "two, an end": _world(schedulers=2, disruptions="break close limit", **_SMALL),
    "two, two responses": _world(schedulers=2, responses=2, **_SMALL),
    "two, at most once": _world(schedulers=2, at_most_once=True, **_SMALL),
    "two, shared memory": _world(schedulers=2, shared=True, **_SMALL),
}


# The others have too many schedules.
_TWO_REORDERINGS = ("one, an end", "one, at most once", "one, two instances", "two, an end")


@pytest.mark.parametrize("world", WORLDS)
def test_every_request_ends_once_whatever_links_do(world: str) -> None:
    found = explore(WORLDS[world], reorderings=2 if world in _TWO_REORDERINGS else 1)
    assert found.failure is None, found.failure
    assert found.complete


@pytest.mark.parametrize("world", WORLDS)
def test_every_request_ends_once_in_random_orders(world: str) -> None:
    found = explore_random(WORLDS[world], seeds=range(40))
    assert found.failure is None, found.failure


# ---- deliberate defects


class _MarksReturned(OnlySchedulerRouter):
    """What was returned counts as what may have begun."""

    def take_back(self, pending: Any, link: Any) -> bool:
        pending.request.resent = True
        return super().take_back(pending, link)


class _MarksMoved(MeshRouter):
    """The same, among several."""

    def take_back(self, pending: Any, link: Any) -> bool:
        pending.request.resent = True
        return super().take_back(pending, link)


class _NeverMarks(PendingRequests):
    """What may have begun is sent again as if it had not."""

    def on_link_down(self, link: Any) -> Any:
        unfinished = super().on_link_down(link)
        for pending in unfinished:
            pending.request.resent = False
        return unfinished


class _KeepsWaiting(OnlySchedulerRouter):
    """What waits is not sent to the next process."""

    def on_frame_end(self, link: Any) -> None:
        self.pending.set_common_route(link if self._accepts(link) else None)


class _SendsToLeaving(OnlySchedulerRouter):
    """A scheduler that shuts down gets what it returned."""

    def take_back(self, pending: Any, link: Any) -> bool:
        link.send(pending.request)
        return super().take_back(pending, link)


class _SendsBegun(PendingRequests):
    """A request that had a response is sent again."""

    def _fail_begun(self, lost: list[Any]) -> None:
        """Do nothing."""


class _KeepsTimer(OnlySchedulerRouter):
    """The limit passes though the link has come back."""

    def _stop_timer(self) -> None:
        """Do nothing."""


class _NeverResumes(PendingRequests):
    """A model that was paused stays so."""

    def set_flow(self, request_id: int, *, paused: bool) -> None:
        if paused:
            super().set_flow(request_id, paused=paused)


class _KeepsHeld(MeshRouter):
    """Nobody wakes requests that are held."""

    def _on_table_changed(self) -> None:
        self._by_head.clear()


class _CountsTheFrame(MeshRouter):
    """Who returns a request, and then announces the model in the same frame, has said nothing."""

    def _on_moved(self, route: Any, pending: Any, announcements: int) -> None:
        super()._on_moved(route, pending, route.announcements)


class _KeptHeads(BoundedCache[bytes, Route]):
    def clear(self) -> None:
        """Do nothing."""


class _KeepsHeads(MeshRouter):
    """Where a head's requests went is not forgotten with its scheduler."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._by_head = _KeptHeads(10)


class _MovesTwice(MeshRouter):
    """A request that was returned is sent where it was, and elsewhere."""

    def _on_moved(self, route: Any, pending: Any, announcements: int) -> None:
        super()._on_moved(route, pending, announcements)
        route.send(pending.request)


class _KeepsSegments(PendingRequests):
    """A segment that was released is not forgotten."""

    def release_segments(self, segment_names: tuple[str, ...]) -> None:
        kept = dict(self._route_of_segment)
        super().release_segments(segment_names)
        self._route_of_segment = kept


class _Kept(set[str]):
    def __isub__(self, _: object) -> Any:
        return self


class _ReleasesTwice(GatewayLinks):
    """A segment that a gateway released is released with its link as well."""

    def _add(self, session: GatewaySession, link: Any) -> None:
        session._lent = _Kept()
        super()._add(session, link)


class _KeepsOlderLinks(Admission):
    """A request that is sent again runs beside its first run, whose link ended unseen."""

    def end_older_link(self, request_id: int, newest: Any) -> None:
        """Do nothing."""


class _NeverExpires(OrphanedRequests):
    """What nobody claims stays."""

    def adopt(self, request_id: int, pending: Any) -> None:
        super().adopt(request_id, pending)
        self._stop_timer(self._requests[request_id])


_DEFECTS: dict[str, tuple[Parts, dict[str, Any]]] = {
    "a returned request is marked": (Parts(one=_MarksReturned), {}),
    "a moved request is marked": (Parts(several=_MarksMoved), {"schedulers": 2}),
    "no mark on what may have begun": (Parts(table=_NeverMarks), {}),
    "what waits is forgotten": (Parts(one=_KeepsWaiting), {}),
    "returned and kept": (Parts(one=_SendsToLeaving), {}),
    "no fence behind a response": (Parts(table=_SendsBegun), {"responses": 2}),
    "a timer that is not stopped": (Parts(one=_KeepsTimer), {}),
    "a model that is not resumed": (Parts(table=_NeverResumes), {"responses": 2, "requests": 1}),
    "a double release": (Parts(links=_ReleasesTwice), {"shared": True}),
    "what nobody claims stays": (
        Parts(orphans=_NeverExpires),
        {"disruptions": "break cancel", **_SMALL},
    ),
    "no fence behind an older link": (
        Parts(admission=_KeepsOlderLinks),
        {"instances": 2, "disruptions": "silence", **_SMALL},
    ),
    "a lost wake-up": (Parts(several=_KeepsHeld), {"schedulers": 2}),
    "a lost wake-up in a frame": (Parts(several=_CountsTheFrame), {"schedulers": 2, "requests": 1}),
    "sent by what was known": (Parts(several=_KeepsHeads), {"schedulers": 2, "requests": 4}),
    "moved and kept": (Parts(several=_MovesTwice), {"schedulers": 2}),
    "a segment is left": (Parts(table=_KeepsSegments), {"schedulers": 2, "shared": True}),
}


@pytest.mark.parametrize("name", _DEFECTS)
def test_deliberate_defects_are_found(name: str) -> None:
    parts, mesh = _DEFECTS[name]
    assert explore(_world(parts, **mesh), reorderings=3).failure is not None
