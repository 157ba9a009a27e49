"""Requests on their way from a gateway to a model that may not be there yet."""

import asyncio
import gc
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from nereid.core.errors import INTERNAL_MESSAGE, Unavailable
from nereid.core.messages import Cancel, InferRequest, InferResponse
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.services.scheduler.executors.instance import Instance, Running
from nereid.services.scheduler.executors.sessions import Placed
from nereid.services.scheduler.models.catalogue import Catalogue, ServedModel, ServedVersion
from nereid.services.scheduler.models.lifecycle import Standing
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.models.queue_limits import QueueLimits
from nereid.services.scheduler.observability.request_traces import SpanTraces
from nereid.services.scheduler.requests.admission import GatewaySession, HoldingRoom, Intake
from nereid.services.scheduler.requests.entry import Batch, Entry
from nereid.services.scheduler.requests.nested_calls import Lineage
from tests.support.peers.spans import KeptSpans
from tests.support.scheduler.fake_executors import turn
from tests.support.scheduler.samples import model_of

TENSORS = """
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""


class Link:
    def __init__(self) -> None:
        self.sent: list[InferResponse] = []

    def send(self, item: InferResponse) -> None:
        self.sent.append(item)

    def flush(self) -> None:
        pass


class World:
    """One model named m whose first load is under way, and a gateway."""

    def __init__(self, limit_s: float = 10.0, most: int = 2, longest_queue: int = 0) -> None:
        self.longest_queue = longest_queue
        self.tracer = KeptSpans()
        self.traces = SpanTraces(self.tracer)
        self.served = ServedVersion("m", 1, "", model_config_pb2.ModelConfig())
        self.served.life.await_executor()
        self.room = HoldingRoom(limit_s, most)
        self.intake = Intake(
            Catalogue([ServedModel("m", {1: self.served})]), self.room, self.traces
        )
        self.link = Link()
        self.gateway = GatewaySession(self.intake)
        self.gateway.link = self.link

    def ready(self) -> ModelVersion:
        model = ModelVersion(model_of(TENSORS), 1, QueueLimits(self.longest_queue), self.traces)
        self.served.runtime = model
        self.served.life.report("a", Standing.UP)
        self.intake.models_changed()
        return model

    def errors(self) -> list[tuple[int, str]]:
        return [(each.id, each.error.message) for each in self.link.sent if each.error]


def request(number: int, **fields: Any) -> InferRequest:
    head = kserve_pb2.ModelInferRequest(model_name="m")
    head.inputs.add(name="I", datatype="UINT8", shape=[1])
    return InferRequest(number, head.SerializeToString(), [b"x"], **fields)


async def test_held_requests_go_to_the_model_once_it_is_there() -> None:
    it = World()
    it.gateway.on_items([request(1), request(2)])
    assert len(it.room) == 2
    it.intake.models_changed()  # nothing of theirs
    await turn()
    assert len(it.room) == 2
    model = it.ready()
    it.intake.models_changed()
    await turn()
    assert len(it.room) == 0
    model.fail_all(Unavailable("over"))
    assert it.errors() == [(1, "over"), (2, "over")]
    model.close()


async def test_a_models_held_request_is_waited_for_like_any_other() -> None:
    it = World()
    others: Any = SimpleNamespace(runtime=object())
    sink: Any = SimpleNamespace(send=lambda _: None, finish=lambda: None)
    other, mine = (Instance(number, "i", "executor", sink) for number in (7, 8))
    nowhere: Any = SimpleNamespace()
    placed = {
        7: Placed(other, others, nowhere, nowhere),
        8: Placed(mine, it.served, nowhere, nowhere),
    }
    it.intake.lineage = lineage = Lineage(placed)
    # The other model's only instance waits for what m shall answer once it is there,
    other.running = Running(1, Batch([], 0, "single"), 0)
    it.gateway.on_items([request(1, caller=7)])
    model = it.ready()
    model.add_instance(mine)
    await turn()
    assert mine.running is not None
    # so m cannot wait for the other model.
    back = request(2, caller=8)
    waiting = Entry(back, nowhere, lambda _: None, 0)
    with pytest.raises(Unavailable, match="for ever"):
        lineage.note(back, others.runtime, waiting)
    model.fail_all(Unavailable("over"))
    model.close()


async def test_a_models_held_request_that_would_wait_for_ever_is_told_so() -> None:
    it = World()
    nowhere: Any = SimpleNamespace()
    mine = Instance(8, "i", "executor", nowhere)
    it.intake.lineage = Lineage({8: Placed(mine, it.served, nowhere, nowhere)})
    mine.running = Running(1, Batch([], 0, "single"), 0)
    it.gateway.on_items([request(1, caller=8)])
    model = it.ready()
    await turn()
    ((number, text),) = it.errors()
    assert number == 1
    assert "for ever" in text
    assert model.pending == 0
    assert it.gateway.pending == 0
    model.close()


async def test_held_requests_hear_of_a_failed_load() -> None:
    it = World()
    it.gateway.on_items([request(1)])
    it.served.life.report("a", Standing.FAILED, "broken")
    it.intake.models_changed()
    await turn()
    assert it.errors() == [(1, "Request for unknown model: 'm' has no available versions")]


async def test_too_many_are_not_held() -> None:
    it = World(most=1)
    it.gateway.on_items([request(1), request(2)])
    assert it.errors() == [(2, "Exceeds maximum queue size")]
    unbounded = World(most=0)
    unbounded.gateway.on_items([request(1), request(2), request(3)])
    assert len(unbounded.room) == 3
    unbounded.gateway.on_down()
    it.gateway.on_down()


async def test_a_deadline_beyond_the_limit_changes_nothing() -> None:
    it = World(limit_s=0.0)
    it.gateway.on_items([request(1, deadline=time.monotonic() + 100)])
    await asyncio.wait_for(it.room.idle(), 5)
    assert it.errors() == [(1, "model 'm' is being loaded; waited 0 s for it")]


async def test_what_is_held_at_the_end_fails() -> None:
    it = World()
    it.gateway.on_items([request(1)])
    idle = asyncio.ensure_future(it.room.idle())
    await turn()
    it.room.fail_all(Unavailable("the end"))
    await asyncio.wait_for(idle, 5)
    await it.room.idle()
    assert it.errors() == [(1, "the end")]


async def test_models_may_still_ask_each_other_while_it_drains() -> None:
    it = World()
    model = it.ready()
    it.intake.stop()
    it.gateway.on_items([request(1), request(2, caller=7)])
    assert [number for number, _ in it.errors()] == [1]
    model.fail_all(Unavailable("over"))
    assert it.errors()[1:] == [(2, "over")]
    model.close()


async def test_held_requests_still_find_their_model_while_it_drains() -> None:
    it = World()
    it.gateway.on_items([request(1)])
    it.intake.stop()
    it.gateway.on_items([request(2)])
    model = it.ready()
    await turn()
    assert len(it.room) == 0
    assert [number for number, _ in it.errors()] == [2]
    it.gateway.on_down()
    assert it.errors()[1:] == []
    model.close()


async def test_a_bug_in_one_request_is_told_as_internal_and_touches_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = World()
    model = it.ready()
    bad = request(1)
    bad.payloads = None  # type: ignore[assignment]
    it.gateway.on_items([bad, request(2)])
    assert it.errors() == [(1, INTERNAL_MESSAGE)]
    assert "could not be taken in" in caplog.text
    model.fail_all(Unavailable("over"))
    assert it.errors()[1:] == [(2, "over")]
    model.close()


class Kept:
    """Stands for a segment: gone when nobody holds it."""


async def test_a_refused_request_is_let_go_of_at_once() -> None:
    it = World()
    it.ready()
    lease = Kept()
    gone = weakref.ref(lease)
    gc.disable()
    try:
        it.gateway.on_items([request(1, deadline=time.monotonic() - 1, lease=lease)])
        del lease
        assert it.errors() == [(1, "the deadline passed before the request arrived")]
        assert gone() is None
    finally:
        gc.enable()


async def test_cancelling_what_is_unknown_is_harmless() -> None:
    it = World()
    it.gateway.on_items([Cancel(99)])
    assert it.link.sent == []


async def test_remembered_heads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nereid.services.scheduler.requests.admission._MOST_HEADS", 2)
    it = World()
    model = it.ready()
    for spaces in (0, 1, 2, 3, 20_000):
        head = kserve_pb2.ModelInferRequest(model_version=" " * spaces + "1")
        each = request(spaces)
        each.head += head.SerializeToString()
        it.gateway.on_items([each])
        assert (each.head in it.intake._by_head) is (spaces < 20_000)
        assert len(it.intake._by_head) <= 2
    assert it.link.sent == []
    it.gateway.on_down()
    model.close()


SAMPLED = b"\0" + b"t" * 24 + b"\1"


def sampled(number: int, **fields: Any) -> InferRequest:
    made = request(number, request_id=str(number), **fields)
    made.trace_context = SAMPLED
    return made


def otherwise(number: int, **fields: Any) -> InferRequest:
    """A request that does not fit the model, or is for none."""
    head = kserve_pb2.ModelInferRequest(model_name="m", **fields)
    head.inputs.add(name="I", datatype="FP32", shape=[1])
    made = sampled(number)
    made.head = head.SerializeToString()
    return made


def told(tracer: KeptSpans) -> list[tuple[str, object, str | None]]:
    return [(s.name, s.attributes.get("triton.request_id"), s.error) for s in tracer.spans]


async def test_a_traced_request_that_is_refused_has_its_span() -> None:
    it = World(longest_queue=1)
    model = it.ready()
    it.gateway.on_items(
        [
            otherwise(1),
            otherwise(2, model_version="7"),
            sampled(3, deadline=time.monotonic() - 1),
            sampled(4, error_status=(3, "a damaged body", False)),
            request(5),
            sampled(6),
            request(7),
        ]
    )
    refused = dict(it.errors())
    assert sorted(refused) == [1, 2, 3, 4, 6, 7]
    assert told(it.tracer) == [("m", str(n), refused[n]) for n in (1, 2, 3, 4, 6)]
    assert "Exceeds maximum queue size" in refused[6]
    assert it.tracer.spans[1].attributes["triton.model_version"] == 7
    assert all(span.parent == SAMPLED for span in it.tracer.spans)
    assert len({span.context for span in it.tracer.spans}) == 5
    it.gateway.on_down()
    model.close()


async def test_a_traced_request_whose_model_does_not_come_has_one_span() -> None:
    it = World(limit_s=0.0)
    it.gateway.on_items([sampled(1), request(2)])
    await asyncio.wait_for(it.room.idle(), 5)
    late = World()
    late.gateway.on_items([sampled(1), request(2)])
    late.served.life.report("a", Standing.FAILED, "broken")
    late.intake.models_changed()
    await turn()
    for world in (it, late):
        assert told(world.tracer) == [("m", "1", dict(world.errors())[1])]
        assert world.tracer.spans[0].start_ns <= world.tracer.spans[0].end_ns


async def test_a_traced_request_that_expires_in_the_queue_has_one_span() -> None:
    it = World()
    model = it.ready()
    it.gateway.on_items([sampled(1, deadline=time.monotonic() + 0.1)])
    await asyncio.wait_for(model.idle(), 5)
    assert [span.name for span in it.tracer.spans] == ["queue", "m"]
    assert it.tracer.one("m").error == dict(it.errors())[1]
    model.close()


async def test_a_head_that_cannot_be_read_is_refused_without_a_span() -> None:
    it = World()
    bad = sampled(1)
    bad.head = b"\xff"
    it.gateway.on_items([bad])
    assert [number for number, _ in it.errors()] == [1]
    assert it.tracer.spans == []
