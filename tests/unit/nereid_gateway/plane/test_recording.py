"""Records of requests: what is filled in on the way, and who reads them at the end."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from time import monotonic_ns

import pytest

from nereid.core.errors import Cancelled
from nereid.core.wire.messages import ErrorStatus, InferResponse, RequestTimings
from nereid.pb import kserve_pb2
from nereid.timeline.recorder import Recorder
from nereid.timeline.records import GatewayRequest
from nereid.timeline.wire import file_part, read_timeline
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_handle import RequestHandle
from nereid_gateway.core.request_record import RequestRecord
from nereid_gateway.core.request_ring import RequestRing
from nereid_gateway.plane.recording import Recording
from nereid_gateway.plane.slow_requests import SlowRequests
from tests.support.gateway.scripted_mesh import ScriptedMesh

HEAD = kserve_pb2.ModelInferRequest(model_name="m").SerializeToString()
SAMPLED = b"\0" + bytes(range(1, 25)) + b"\1"
FAILED = ErrorStatus(13, "failed")

OnResponse = Callable[[InferResponse], None]


class Mesh(ScriptedMesh):
    """The step behind the recording."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder = Recorder("gateway", "host", 30)
        self.timeline = RequestRing(self.recorder)
        self.slow_requests = SlowRequests()
        self.recording = Recording(self.infer, self.timeline, None, self.slow_requests)

    def ask(
        self, record: RequestRecord | None, on_response: OnResponse | None = None
    ) -> RequestHandle:
        request = ClientRequest(7, HEAD, [], "mine", trace_context=SAMPLED)
        request.record = record
        return self.recording.infer(request, on_response or self.delivered.append)

    def recorded(self) -> list[GatewayRequest]:
        read = read_timeline(b"".join(map(file_part, self.recorder.frames(30_000_000_000))))
        return [each for each in read.services[0].records if isinstance(each, GatewayRequest)]


def record(protocol: str = "grpc", streamed: bool = False) -> RequestRecord:
    return RequestRecord(protocol, monotonic_ns(), None, streamed)


def response(error: ErrorStatus | None = None, more: bool = False) -> InferResponse:
    return InferResponse(7, b"", error=error, more=more)


def test_a_request_without_a_record_passes_as_it_came() -> None:
    it = Mesh()
    assert it.ask(None) is it
    assert it.on_response == it.delivered.append
    it.on_response(response())
    assert it.recorded() == []


@pytest.mark.parametrize(
    ("of", "streamed", "protocol"),
    [("http", False, "http"), ("grpc", False, "grpc"), ("grpc", True, "stream")],
)
def test_the_last_response_ends_the_record(of: str, streamed: bool, protocol: str) -> None:
    it = Mesh()
    made = record(of, streamed)
    it.ask(made)
    it.on_response(response(more=True))
    assert it.recorded() == []
    it.on_response(response(FAILED))
    assert len(it.delivered) == 2
    [shown] = it.recorded()
    assert (shown.protocol, shown.status) == (protocol, FAILED.code)
    assert (shown.number, shown.model, shown.request_id) == (7, "m", "mine")
    assert shown.trace_id == SAMPLED[1:17].hex()
    assert shown.received_ns == made.received_ns <= shown.ended_ns == made.ended_ns


def test_a_request_that_ends_before_it_is_sent_keeps_no_handle() -> None:
    it = Mesh()

    def refuse(_: ClientRequest, on_response: OnResponse) -> RequestHandle:
        on_response(response(FAILED))
        return it

    it.recording = Recording(refuse, it.timeline, None, None)
    handle = it.ask(record())
    handle.cancel()
    handle.set_flow(paused=True)
    assert it.cancelled == 0
    assert it.flows == []
    assert [shown.status for shown in it.recorded()] == [FAILED.code]


def test_a_cancelled_request_ends_once() -> None:
    it = Mesh()
    handle = it.ask(record())
    handle.set_flow(paused=True)
    assert it.flows == [True]
    handle.cancel()
    handle.cancel()
    it.on_response(response())
    assert it.cancelled == 1
    assert it.delivered == []
    assert [shown.status for shown in it.recorded()] == [Cancelled.code]


def test_who_cancels_while_the_last_response_is_delivered_cancels_nothing() -> None:
    it = Mesh()
    handles: list[RequestHandle] = []
    handles.append(it.ask(record(), lambda _: handles[0].cancel()))
    it.on_response(response(FAILED))
    assert it.cancelled == 0
    assert [shown.status for shown in it.recorded()] == [FAILED.code]


def test_a_response_that_cannot_be_delivered_ends_the_record_and_its_error_is_delivered() -> None:
    it = Mesh()

    def fail_once(delivered: InferResponse) -> None:
        if delivered.error is None:
            raise RuntimeError("broken")
        it.delivered.append(delivered)

    it.ask(record(), fail_once)
    with pytest.raises(RuntimeError):
        it.on_response(response())
    it.on_response(response(FAILED))
    assert [each.error for each in it.delivered] == [FAILED]
    assert [shown.status for shown in it.recorded()] == [0]


def test_timings_are_there_when_the_last_response_is_delivered() -> None:
    it = Mesh()
    made = record()
    seen: list[RequestTimings | None] = []
    it.ask(made, lambda _: seen.append(made.timings))
    last = response()
    last.timings = RequestTimings(batch_size=4)
    it.on_response(response(more=True))
    it.on_response(last)
    assert seen == [None, last.timings]


def test_slow_requests_are_kept_while_a_console_is_open() -> None:
    it = Mesh()
    it.ask(record())
    it.slow_requests.watch(watched=True)
    it.on_response(response())
    assert it.slow_requests.slowest() == []
    head = kserve_pb2.ModelInferResponse(model_version="3").SerializeToString()
    it.ask(record())
    last = InferResponse(7, head)
    last.timings = RequestTimings((("queue", 2000),), batch_size=4)
    it.on_response(last)
    it.ask(record())
    it.on_response(response(FAILED))
    it.ask(record()).cancel()
    kept = {each.get("error", ""): each for each in it.slow_requests.slowest()}
    assert kept.keys() == {"", "failed"}
    shown = kept[""]
    assert (shown["model"], shown["version"], shown["number"]) == ("m", "3", "7")
    assert shown["trace_id"] == SAMPLED[1:17].hex()
    assert (shown["phases_us"], shown["batch_size"]) == ({"queue": 2.0}, 4)
    it.slow_requests.watch(watched=False)
    assert it.slow_requests.slowest() == []


def test_an_ended_request_is_freed_without_a_garbage_collection() -> None:
    it = Mesh()
    freed: list[str] = []

    class Client:
        def __init__(self, name: str) -> None:
            self.name = name

        def __del__(self) -> None:
            freed.append(self.name)

        def on_response(self, made: RequestRecord, _: InferResponse) -> None:
            assert made.call is self

    def ask(name: str) -> RequestHandle:
        client = Client(name)
        made = RequestRecord("grpc", 1, client)
        return it.ask(made, partial(client.on_response, made))

    gc.disable()
    try:
        ask("responded")
        it.on_response(response())
        ask("cancelled").cancel()
        assert freed == ["responded", "cancelled"]
    finally:
        gc.enable()
