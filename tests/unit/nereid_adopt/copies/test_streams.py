from collections.abc import Iterable
from typing import Any

from nereid.comparison.rules import parse_rules
from nereid.comparison.tally import Tally
from nereid.pb import kserve_pb2
from nereid_adopt.calls.traffic import Side
from nereid_adopt.copies.streams import StreamCopy
from nereid_adopt.proxy.recorder import StreamEvent


class Channel:
    """Channel whose only stream the test plays."""

    buffered_bytes = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.half_closed = self.cancelled = False

    def stream(self, path: str, **callbacks: Any) -> "Channel":
        self.on_message, self.on_close = callbacks["on_message"], callbacks["on_close"]
        return self

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def half_close(self) -> None:
        self.half_closed = True

    def cancel(self) -> None:
        self.cancelled = True


class World:
    def __init__(self) -> None:
        self.tally = Tally(parse_rules({}))
        self.channel = Channel()
        self.closed = 0
        begin = StreamEvent(1, Side.OLD, "begin", path="/p")
        self.copy = StreamCopy(begin, self.channel, self.tally, self._on_closed)  # type: ignore[arg-type]

    def _on_closed(self) -> None:
        self.closed += 1

    def on_event(self, kind: str, message: bytes = b"") -> None:
        self.copy.on_event(StreamEvent(1, Side.OLD, kind, message=message))

    def send(self, request_id: str) -> None:
        request = kserve_pb2.ModelInferRequest(model_name="m", id=request_id)
        self.on_event("request", request.SerializeToString())

    def respond(self, side: Side, request_id: str, value: int, final: bool | None = None) -> None:
        message = kserve_pb2.ModelStreamInferResponse()
        response = message.infer_response
        response.id = request_id
        if value >= 0:
            response.outputs.add(name="y", datatype="UINT8", shape=[1])
            response.raw_output_contents.append(bytes([value % 256]))
        if final is not None:
            response.parameters["triton_final_response"].bool_param = final
        raw = message.SerializeToString()
        if side is Side.OLD:
            self.on_event("response", raw)
        else:
            self.channel.on_message(raw)

    def end(self) -> None:
        self.on_event("half-close")
        self.on_event("end", b"0")
        self.channel.on_close(None)

    def counts(self) -> tuple[int, int]:
        return self.tally.totals("m")


def respond_all(world: World, side: Side, ids: Iterable[str]) -> None:
    for request_id in ids:
        world.respond(side, request_id, 1)


def test_responses_are_compared_by_id_in_any_order() -> None:
    world = World()
    for request_id in "ab":
        world.send(request_id)
    respond_all(world, Side.OLD, "ab")
    respond_all(world, Side.NEW, "ba")
    world.end()
    assert world.counts() == (2, 0)
    assert len(world.channel.sent) == 2
    assert world.channel.half_closed
    assert world.closed == 1


def test_the_end_may_come_with_the_last_response_or_after_it() -> None:
    world = World()
    world.send("a")
    world.respond(Side.OLD, "a", 1, final=True)
    world.respond(Side.NEW, "a", 1, final=False)
    world.respond(Side.NEW, "a", -1, final=True)
    world.end()
    assert world.counts() == (1, 0)


def test_another_number_of_responses_is_a_difference() -> None:
    world = World()
    world.send("a")
    respond_all(world, Side.OLD, "aa")
    respond_all(world, Side.NEW, "a")
    world.end()
    assert world.counts() == (1, 1)


def test_requests_of_a_long_stream_are_compared_meanwhile() -> None:
    world = World()
    ids = [str(number) for number in range(2000)]
    world.send("0")
    for request_id in ids:
        respond_all(world, Side.OLD, [request_id])
        respond_all(world, Side.NEW, [request_id])
    compared, _ = world.counts()
    assert compared > 1000
    world.end()
    assert world.counts() == (2000, 0)


def test_responses_without_ids_are_compared_meanwhile_as_well() -> None:
    world = World()
    world.send("")
    for _ in range(3000):
        respond_all(world, Side.OLD, [""])
        respond_all(world, Side.NEW, [""])
    assert world.counts()[0] >= 2
    world.end()
    assert world.counts()[1] == 0


def test_a_server_that_sends_nothing_is_a_difference_and_not_waited_for() -> None:
    world = World()
    world.send("0")
    respond_all(world, Side.OLD, map(str, range(10_000)))
    assert world.counts()[1] > 1000


def test_a_cancelled_stream_compares_what_both_have_sent() -> None:
    world = World()
    world.send("a")
    respond_all(world, Side.OLD, "ab")
    respond_all(world, Side.NEW, "a")
    world.on_event("cancel")
    world.channel.on_close(None)
    respond_all(world, Side.NEW, "b")
    assert world.counts() == (1, 0)
    assert world.channel.cancelled
    assert world.closed == 1
    assert world.tally.document()["not_compared"] == {"the client cancelled the stream": 1}


def test_another_status_of_the_stream_is_a_difference() -> None:
    world = World()
    world.send("a")
    respond_all(world, Side.OLD, "a")
    respond_all(world, Side.NEW, "a")
    world.on_event("end", b"13")
    world.channel.on_close(None)
    [model] = world.tally.document()["models"]
    assert [item["name"] for item in model["differences"]] == ["stream status"]


def test_a_server_that_does_not_read_is_not_waited_for() -> None:
    world = World()
    world.channel.buffered_bytes = 1 << 30
    world.send("a")
    assert world.tally.document()["not_compared"] == {"the other server is too slow": 1}


def test_responses_that_wait_are_bounded_in_bytes() -> None:
    world = World()
    world.send("a")
    message = kserve_pb2.ModelStreamInferResponse()
    message.infer_response.outputs.add(name="y", datatype="UINT8", shape=[1 << 20])
    message.infer_response.raw_output_contents.append(bytes(1 << 20))
    raw = message.SerializeToString()
    for _ in range(65):
        world.on_event("response", raw)
    assert world.tally.document()["not_compared"] == {"the other server is too slow": 1}


def test_requests_are_settled_when_they_are_compared_or_their_stream_ends() -> None:
    world = World()
    for number in range(3):
        world.send(str(number))
    assert world.tally.settled == {}
    # Responses are compared by id when the stream ends, or there are too many.
    for _ in range(1024):
        for side in Side:
            world.respond(side, "0", 1)
    assert world.tally.take_checkpoint().settled == {"": 1}
    world.end()
    assert world.tally.take_checkpoint().settled == {"": 2}
    assert world.closed == 1
