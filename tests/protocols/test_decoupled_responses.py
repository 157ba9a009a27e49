"""Decoupled responses with flow control: a client's stream at a gateway, a scheduler, and an
instance's batches, over a link and streams that break and a client that reads late.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nereid.backends import Response
from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import CachedModels, FlowControl, InferResponse
from nereid.mesh_routing.router.only_scheduler import OnlySchedulerRouter
from nereid.mesh_routing.router.pending_requests import PendingRequests
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Status
from nereid.version import is_compiled
from nereid_executor.batch.batch_reader import read_batch
from nereid_executor.batch.lifecycle.received_batches import COMPLETE
from nereid_executor.batch.open_batches import OpenBatch, OpenBatches
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.response_timings import TimedRequests
from nereid_gateway.core.tensors.tensor_memory import TensorMemory
from nereid_gateway.fronts.grpc.infer_stream import InferStreams, _InferStream
from nereid_scheduler.admission.admission import Admission
from nereid_scheduler.admission.gateway_session import GatewaySession
from nereid_scheduler.core.requests.load_queue import LoadQueue
from nereid_scheduler.placement.models.catalogue import Catalogue
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.version_context import VersionContext
from tests.protocols.explorer import Action, Channel, World, explore, explore_random
from tests.protocols.instance_wire import InstanceWire
from tests.protocols.message import Message
from tests.protocols.virtual_loop import VirtualLoop
from tests.support.mesh.fake_link import IGNORE
from tests.support.scheduler.samples import model_of
from tests.support.scheduler.world import HEAD, TENSORS, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from nereid.rpc import Status

_MODEL = model_of(TENSORS + "model_transaction_policy { decoupled: true }")
_RESPONSE = kserve_pb2.ModelInferResponse(model_name="m").SerializeToString()
_REQUESTS = 2
_RESPONSES = 3
# As the connection counts a reply: a stream is full with two, and writable with one.
_REPLY_BYTES = 600_000
_FULL, _WRITABLE = 1 << 20, _REPLY_BYTES


class _Call:
    """The client's call as the gateway's connection has it, with the replies that are not read."""

    account = deadline = None
    metadata = ()
    peer = "client"

    def __init__(self) -> None:
        self.unread: list[bytes] = []
        self.on_message: Any = None
        self.on_half_close: Any = None
        self.on_writable: Any = None
        self.on_cancel: Any = None
        self.finished: Any = None
        self.cancelled = False
        # It is to be notified once the client has read; and by whose replies it was overfull.
        self.above = False
        self.overfull: set[str] = set()

    def get(self, name: str) -> None:
        return None

    @property
    def buffered_bytes(self) -> int:
        return len(self.unread) * _REPLY_BYTES

    def send(self, reply: bytes) -> None:
        self.unread.append(reply)
        self.above = self.above or self.buffered_bytes > _WRITABLE
        if self.buffered_bytes > _FULL:
            message = kserve_pb2.ModelStreamInferResponse.FromString(reply)
            self.overfull.add(message.infer_response.id)

    def pause(self) -> None:
        """Do nothing: all requests have come."""

    resume = pause

    def finish(self, status: Any, message: str) -> None:
        self.finished = status


class _Executor(InstanceWire):
    """One instance: its batches, the model that has them, and its stream."""

    def __init__(self, world: DecoupledWorld, number: int) -> None:
        self.connect(world.loop, world.model, number, f"i{number}", accepts_controls=True)
        config = model_config_pb2.ModelConfig(name="m")
        config.CopyFrom(_MODEL.proto)
        config.model_transaction_policy.decoupled = True
        self.open = OpenBatches(config, Path("1"), self.name)
        # By batch and member: how many responses the model has sent.
        self.sent: dict[tuple[int, int], int] = {}
        self.names: dict[tuple[int, int], str] = {}
        self.paused: set[tuple[int, int]] = set()
        self.cancelled: set[tuple[int, int]] = set()

    def describe(self, batch: pb.Batch) -> str:
        kinds = [pb.MemberControl.Kind.Name(each.kind) for each in batch.controls]
        return " ".join(kinds) or f"execute batch {batch.id}"

    def actions(self) -> Iterator[Action]:
        yield from self.batches.arrivals()
        yield from self.replies.arrivals()
        for key in self.sent:
            if key not in self.paused:
                number, member = key
                text = f"{self.name} responds to {member} of batch {number}"
                yield Action(self.name, text, partial(self._respond, key))

    def break_stream(self) -> None:
        super().break_stream()
        self.sent.clear()
        self.open.received.lose_all()

    def on_batch(self, message: Any) -> None:
        frame = read_batch(message.body)
        controls = list(self.open.controlled_requests(frame.controls))
        for batch, member, kind in controls:
            key = batch.number, member
            if kind == pb.MemberControl.PAUSE:
                self.paused.add(key)
            else:
                # Who waits to send learns of both.
                self.paused.discard(key)
                if kind == pb.MemberControl.CANCEL:
                    self.cancelled.add(key)
        if frame.requests:
            assert self.open.received.read(frame.id)
            batch = self.open.begin_batch(frame, frame.id, 0)
            for member in range(len(batch.requests)):
                self.sent[frame.id, member] = 0
                self.names[frame.id, member] = frame.requests[member].request_id
            # The model keeps the response senders, and can execute the next batch.
            self._advance(batch)

    def _respond(self, key: tuple[int, int]) -> None:
        number, member = key
        index = self.sent[key]
        self.sent[key] += 1
        more = index + 1 < _RESPONSES and key not in self.cancelled
        if not more:
            del self.sent[key]
        batch = self.open.received.find(number)
        assert batch is not None
        response = Response(member, more, None, _RESPONSE, [bytes([index])])
        self.open.add_responses(batch, [response])
        self._advance(batch)

    def _advance(self, batch: OpenBatch) -> None:
        frame = batch.next_frame(self.open.received, executed=True)
        if frame is not None:
            self.reply(frame, f"frame of batch {batch.number}")
        if batch.state is COMPLETE:
            self.open.received.end(batch)


class DecoupledWorld(World):
    """A client with requests on one stream; each has several responses."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.submitted = 0
        self.stalled = False
        self.link_broken = self.link_noticed = False
        self.session_open = True
        # By request: what the client has read of it.
        self.read: dict[str, list[int]] = {str(n): [] for n in range(_REQUESTS)}
        self.errors: dict[str, str] = {}
        self.gateway, self.loop = VirtualLoop("gateway"), VirtualLoop("scheduler")
        self.to_scheduler = Channel("to scheduler", self._on_request)
        self.to_gateway = Channel("to gateway", self._on_response)
        self.executors: list[_Executor] = []
        self.loop.run(self._start_scheduler)
        self.gateway.run(self._start_gateway)

    def _start_scheduler(self) -> None:
        self.model = ModelVersion(_MODEL, 1, VersionContext())
        catalogue = Catalogue()
        serve(catalogue, runtime=self.model)
        self.admission = Admission(catalogue, LoadQueue(10.0, 2))
        self._open_session()
        self._add_executor()

    def _open_session(self) -> None:
        self.session = GatewaySession(self.admission)
        link: Any = SimpleNamespace(send=self._send_response)
        self.session.link = link

    def _add_executor(self) -> None:
        self.executors.append(_Executor(self, len(self.executors)))
        self.model.pool.roster.add(self.executors[-1].instance)

    def _start_gateway(self) -> None:
        def open_link(**callbacks: Any) -> Any:
            self.callbacks = callbacks
            callbacks["on_up"]()
            self.link = SimpleNamespace(
                up=True, on_items=callbacks["on_items"], send=self._send_request
            )
            return self.link

        self.client = OnlySchedulerRouter(open_link, TensorMemory(0), 1e9, IGNORE)
        self.client.open()
        self.first_id = self.client.pending.last_id + 1
        self._greet()
        self.call = _Call()
        decoder: Any = SimpleNamespace(decode_now=self._decode)
        data_plane: Any = SimpleNamespace(
            records_all=False,
            timed=TimedRequests.NEVER,
        )
        statuses = dict.fromkeys(range(17), 0)
        streams = InferStreams(data_plane, decoder, statuses, lambda _: Status.CANCELLED, None)
        call: Any = self.call
        streams.open_stream(call, self.client.pending.infer)
        (self.stream,) = streams._open

    @staticmethod
    def _decode(message: bytes) -> ClientRequest:
        return ClientRequest(0, HEAD, [b"x"], request_id=message.decode())

    # ---- the wire

    def _send_request(self, item: Any, at_once: bool = False) -> None:
        text = type(item).__name__
        if isinstance(item, FlowControl):
            text = "pause" if item.paused else "resume"
        text = f"{text} {item.id - self.first_id}"
        self.to_scheduler.send(Message(RequestCodec().encode([item]), text))

    def _send_response(self, item: InferResponse, at_once: bool = False) -> None:
        text = f"response {item.id - self.first_id}{' and more' if item.more else ''}"
        self.to_gateway.send(Message(ResponseCodec().encode([item]), text))

    def _on_request(self, message: Any) -> None:
        self.loop.run(self.session.on_items, RequestCodec().decode(message.body))

    def _on_response(self, message: Any) -> None:
        self.gateway.run(self.link.on_items, ResponseCodec().decode(message.body))

    # ---- steps

    def actions(self) -> Iterable[Action]:
        if self.submitted < _REQUESTS and not self.call.cancelled:
            yield Action("client", f"request {self.submitted}", self._submit)
        yield from self.gateway.turns()
        yield from self.loop.turns()
        yield from self.to_scheduler.arrivals()
        yield from self.to_gateway.arrivals()
        if not self.stalled:
            yield from self._reads()
        for each in self.executors:
            yield from each.actions()
        if self.link_broken:
            if not self.link_noticed:
                yield Action("link", "the gateway sees the link's end", self._see_link_end)
            if self.session_open:
                yield Action("link", "the scheduler sees the link's end", self._end_session)
            if self.link_noticed and not self.session_open:
                yield Action("link", "the link comes up", self._reconnect)
        if self.executors[-1].batches.broken:
            yield Action("stream", "the scheduler sees the stream's end", self._lose_instance)
        if self.stalled:
            yield from self._reads()
        if not self.stalled:
            yield Action("client", "the client stands still", self._stall, disruption=True)
        if not self.call.cancelled and self.submitted and self._is_open():
            yield Action("client", "the client cancels", self._cancel, disruption=True)
        if "link" not in self.used:
            yield Action("link", "the link breaks", self._break_link, disruption=True)
        if "stream" not in self.used:
            yield Action("stream", "the stream breaks", self._break_stream, disruption=True)

    def _is_open(self) -> bool:
        return self.call.finished is None and bool(self.client.pending.requests)

    def _reads(self) -> Iterator[Action]:
        if self.call.unread:
            yield Action("client", "the client reads", self._read)

    def _stall(self) -> None:
        self.stalled = True

    def _submit(self) -> None:
        self.submitted += 1
        self.gateway.run(self.call.on_message, b"%d" % (self.submitted - 1))

    def _read(self) -> None:
        call = self.call
        reply = kserve_pb2.ModelStreamInferResponse.FromString(call.unread.pop(0))
        response = reply.infer_response
        if reply.error_message:
            assert response.id not in self.errors, "it has failed twice"
            self.errors[response.id] = reply.error_message
        else:
            assert response.id not in self.errors, "a response after an error"
            self.read[response.id].append(response.raw_output_contents[0][0])
        if call.above and call.buffered_bytes <= _WRITABLE:
            call.above = False
            call.overfull.clear()
            self.gateway.run(call.on_writable)

    def _cancel(self) -> None:
        self.call.cancelled = True
        self.call.unread.clear()
        self.gateway.run(self.call.on_cancel)

    def _greet(self) -> None:
        self.callbacks["on_items"]([CachedModels(())])

    def _break_link(self) -> None:
        self.used.add("link")
        self.link_broken = True
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

    def _break_stream(self) -> None:
        self.used.add("stream")
        self.executors[-1].break_stream()

    def _lose_instance(self) -> None:
        self.loop.run(
            self.model.pool.lose_instance, self.executors[-1].instance, "its stream broke"
        )
        self.loop.run(self._add_executor)

    # ---- what holds

    def check(self) -> None:
        for number, indexes in self.read.items():
            assert indexes == [*range(len(indexes))], f"request {number} has responses {indexes}"
        executor = self.executors[-1]
        channels = (self.to_scheduler, self.to_gateway, executor.batches, executor.replies)
        if any(each.messages or each.broken for each in channels) or self.call.cancelled:
            return
        # Nothing is on its way: who sent more than the client reads has been paused.
        for key in executor.sent:
            if executor.names[key] in self.call.overfull and key not in executor.cancelled:
                assert key in executor.paused, "a model that overfills a stream is not paused"
        if self.call.buffered_bytes <= _WRITABLE and not self.call.above:
            left = executor.paused.intersection(executor.sent)
            assert not left, "a model is paused for a client that has read"

    def check_at_rest(self) -> None:
        assert not self.client.pending.requests, "a request is left at the gateway"
        assert self.model.dispatcher.pending == 0, "a request is left at the scheduler"
        assert self.session.pending == 0, "a request is left in the session"
        assert not self.stream._paused_requests, "a request is still paused"
        executor = self.executors[-1]
        assert not executor.sent, "a request is left at the model"
        assert not executor.open.received.busy, "a batch is left at the executor"
        assert not executor.instance.batches.at_work, "the scheduler counts open members"
        if not self.call.cancelled:
            for number, indexes in self.read.items():
                assert len(indexes) == _RESPONSES or number in self.errors, f"{number} is cut off"
            assert self.used or not self.errors, "a request has failed"

    def fingerprint(self) -> Hashable:
        def texts(channel: Channel) -> tuple[str, ...]:
            return str(channel.broken), *map(str, channel.messages)

        return (
            tuple(tuple(each) for each in self.read.values()),
            tuple(self.call.unread),
            tuple(self.errors),
            (self.submitted, self.stalled, frozenset(self.used), self.call.cancelled),
            frozenset(self.call.overfull),
            (self.call.above, self.link_broken, self.link_noticed, self.session_open),
            tuple(
                (
                    tuple(each.sent.items()),
                    frozenset(each.paused),
                    frozenset(each.cancelled),
                    texts(each.batches),
                    texts(each.replies),
                    len(each.instance.batches.entries()),
                )
                for each in self.executors
            ),
            texts(self.to_gateway),
            texts(self.to_scheduler),
            tuple((each.request.request_id, each.state) for each in self.model.requests.entries),
            tuple(
                (each.request.request_id, each.responses)
                for each in self.client.pending.requests.values()
            ),
            len(self.stream._paused_requests),
            (len(self.gateway.ready), len(self.loop.ready), self.session.pending),
        )


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


WORLDS: dict[str, Callable[[], World]] = {"two requests": DecoupledWorld}


def test_each_request_has_its_responses_in_order_and_no_model_overruns_its_client() -> None:
    found = explore(DecoupledWorld, reorderings=2)
    assert found.failure is None, found.failure
    assert found.complete


def test_decoupled_responses_hold_in_random_orders() -> None:
    found = explore_random(DecoupledWorld, seeds=range(200))
    assert found.failure is None, found.failure


# ---- deliberate defects: methods of the product's machines that do something else


def _no_resume(self: Any) -> None:
    """The client has read, and nobody is notified."""
    self._paused_requests.clear()
    self.resume_reading()


def _resumes_first(self: Any) -> None:
    """Of the paused models the first one alone goes on."""
    for request in self._paused_requests:
        request.set_flow(paused=False)
        break
    self._paused_requests.clear()
    self.resume_reading()


def _cancels_nothing(self: Any) -> None:
    self.ended = True
    self._owner.remove_stream(self)
    self.order.replies.clear()
    self._paused_requests.clear()


def _first_batch(self: OpenBatches, controls: Any) -> Iterator[tuple[OpenBatch, int, int]]:
    """A control is taken for the oldest batch, whatever its number."""
    for control in controls:
        for batch in self.received.begun()[:1]:
            yield batch, control.member, control.kind


def _no_pause(self: ModelVersion, entry: Any, *, paused: bool) -> None:
    if not paused:
        _set_flow(self, entry, paused=paused)


def _no_fence(self: PendingRequests, lost: list[Any]) -> None:
    """Requests of a broken link are sent again though their clients have responses."""


def _wrong_request(self: GatewaySession, items: list[Any]) -> None:
    """Flow control is taken for the oldest request, whatever its id."""
    first = next(iter(self._pending), 0)
    _on_items(
        self, [each._replace(id=first) if isinstance(each, FlowControl) else each for each in items]
    )


def _never_ends(self: OpenBatch, responses: Any) -> None:
    """A member's last response does not end it."""
    opened = set(self._open)
    _add_final_responses(self, responses)
    self._open |= opened


_set_flow, _on_items = ModelVersion.set_flow, GatewaySession.on_items
_add_final_responses = OpenBatch.add_final_responses

_DEFECTS: dict[str, tuple[type, str, Any]] = {
    "a lost wake-up": (_InferStream, "on_writable", _no_resume),
    "one wake-up for all": (_InferStream, "on_writable", _resumes_first),
    "a cancellation that goes no further": (_InferStream, "_cancel_requests", _cancels_nothing),
    "controls by position": (OpenBatches, "controlled_requests", _first_batch),
    "a forgotten pause": (ModelVersion, "set_flow", _no_pause),
    "no fence behind a broken link": (PendingRequests, "_fail_begun", _no_fence),
    "flow control of another request": (GatewaySession, "on_items", _wrong_request),
    "a member that never ends": (OpenBatch, "add_final_responses", _never_ends),
}


@pytest.mark.skipif(is_compiled(), reason="compiled classes cannot be varied")
@pytest.mark.parametrize("name", _DEFECTS)
def test_deliberate_defects_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*_DEFECTS[name])
    assert explore(DecoupledWorld, reorderings=2).failure is not None
