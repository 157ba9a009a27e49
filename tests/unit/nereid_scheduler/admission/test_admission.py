"""Requests on their way from a gateway to a model that may not be loaded yet."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nereid.core.errors import Unavailable
from nereid.core.traffic.weights import make_traffic
from nereid.core.wire.messages import InferRequest, MovedResponse
from nereid.pb import kserve_pb2
from nereid.timeline.recorder import Recorder
from nereid.timeline.records import LOADING, Wait
from nereid.timeline.wire import file_part, read_timeline
from nereid_scheduler.core.instances.instance_batches import SentBatch
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
from nereid_scheduler.core.models.lifecycle import LoadStatus
from nereid_scheduler.core.models.text_files import NO_TEXT_FILES, TextFiles
from nereid_scheduler.core.requests.entry import Batch, Entry, ValidHead
from nereid_scheduler.placement.executors.sessions import PlacedInstance
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.version_context import VersionContext
from nereid_scheduler.versions.waits.nested_calls import NestedCalls
from tests.support.peers.spans import RecordedSpans
from tests.support.scheduler.samples import model_of
from tests.support.scheduler.world import (
    TENSORS,
    AdmissionWorld,
    request,
    served_model,
    served_version,
    turn,
)


async def test_held_requests_go_to_the_model_once_it_is_ready() -> None:
    it = AdmissionWorld()
    it.gateway.on_items([request(1), request(2)])
    assert len(it.load_queue) == 2
    it.admission.models_changed()  # nothing of theirs
    await turn()
    assert len(it.load_queue) == 2
    model = it.ready()
    it.admission.models_changed()
    await turn()
    assert len(it.load_queue) == 0
    model.fail_all(Unavailable("over"))
    assert it.errors() == [(1, "over"), (2, "over")]


def waits_of(recorder: Recorder) -> list[Wait]:
    read = read_timeline(b"".join(map(file_part, recorder.frames(30_000_000_000))))
    return [each for each in read.services[0].records if isinstance(each, Wait)]


async def test_what_held_requests_waited_for_is_recorded() -> None:
    recorder = Recorder("scheduler", "s", 30)
    it = AdmissionWorld(timeline=SchedulerTimeline(recorder))
    it.gateway.on_items([request(1), request(2)])
    model = it.ready()
    await turn()
    [wait] = waits_of(recorder)
    # They left the version to the scheduler.
    assert (wait.model, wait.version) == (model.requests.named[0], "1")
    assert (wait.reason, wait.requests) == (LOADING, 2)
    assert wait.from_ns < wait.to_ns
    model.fail_all(Unavailable("over"))


async def test_held_requests_that_fail_have_waited_as_well() -> None:
    recorder = Recorder("scheduler", "s", 30)
    it = AdmissionWorld(timeline=SchedulerTimeline(recorder))
    it.gateway.on_items([request(1)])
    it.load_queue.fail_all(Unavailable("over"))
    assert it.errors() == [(1, "over")]
    [wait] = waits_of(recorder)
    assert (wait.model, wait.version, wait.reason, wait.requests) == ("m", "", LOADING, 1)


async def test_a_models_held_request_counts_in_deadlock_detection() -> None:
    served = served_version(state="loading")
    others: Any = SimpleNamespace(runtime=SimpleNamespace())
    sink: Any = SimpleNamespace(send=lambda *_, **_options: None, finish=lambda: None)
    other, mine = (RemoteInstance(number, "i", "executor", sink) for number in (7, 8))
    nowhere: Any = SimpleNamespace()
    placed = {
        7: PlacedInstance(other, others, nowhere, nowhere),
        8: PlacedInstance(mine, served, nowhere, nowhere),
    }
    nested_calls = NestedCalls(placed)
    it = AdmissionWorld(nested_calls=nested_calls, served=served)
    # The other model's only instance waits for a response of m, which is being loaded,
    other.batches.add_batch(SentBatch(1, Batch([], 0, "single"), 0))
    it.gateway.on_items([request(1, caller=7)])
    model = it.ready()
    model.pool.roster.add(mine)
    await turn()
    assert mine.batches.first is not None
    # so m cannot wait for the other model.
    back = request(2, caller=8)
    valid = ValidHead(1, (), (), ())
    waiting = Entry(back, valid, lambda _: None, others.runtime, 0)
    with pytest.raises(Unavailable, match="for ever"):
        nested_calls.add_call(back, waiting)


async def test_a_models_held_request_that_would_deadlock_is_refused() -> None:
    served = served_version(state="loading")
    nowhere: Any = SimpleNamespace()
    mine = RemoteInstance(8, "i", "executor", nowhere)
    nested_calls = NestedCalls({8: PlacedInstance(mine, served, nowhere, nowhere)})
    it = AdmissionWorld(nested_calls=nested_calls, served=served)
    mine.batches.add_batch(SentBatch(1, Batch([], 0, "single"), 0))
    it.gateway.on_items([request(1, caller=8)])
    model = it.ready()
    await turn()
    ((number, text),) = it.errors()
    assert number == 1
    assert "for ever" in text
    assert model.dispatcher.pending == 0
    assert it.gateway.pending == 0


async def test_models_may_call_each_other_during_the_drain() -> None:
    it = AdmissionWorld()
    model = it.ready()
    it.admission.stop()
    it.gateway.on_items([request(1), request(2, caller=7)])
    assert [number for number, _ in it.errors()] == [1]
    model.fail_all(Unavailable("over"))
    assert it.errors()[1:] == [(2, "over")]


async def test_the_drain_leaves_held_requests_of_clients_to_the_next_scheduler() -> None:
    it = AdmissionWorld()
    it.gateway.on_items([request(1), request(2, caller=7)])
    it.admission.stop()
    it.gateway.on_items([request(3)])
    assert [number for number, _ in it.errors()] == [1, 3]
    assert all(isinstance(each, MovedResponse) for each in it.link.sent)
    # Whoever made the other one is executing, and waits for it.
    model = it.ready()
    it.admission.models_changed()
    await turn()
    assert len(it.load_queue) == 0
    assert model.dispatcher.pending == 1
    it.gateway.on_down()
    assert it.errors()[2:] == []


async def test_remembered_heads_are_bounded() -> None:
    it = AdmissionWorld(max_heads=2)
    it.ready()
    for spaces in (0, 1, 2, 3, 20_000):
        head = kserve_pb2.ModelInferRequest(model_version=" " * spaces + "1")
        each = request(spaces)
        each.head += head.SerializeToString()
        it.gateway.on_items([each])
        assert (each.head in it.admission._by_head) is (spaces < 20_000)
        assert len(it.admission._by_head) <= 2
    assert it.link.sent == []
    it.gateway.on_down()


SAMPLED = b"\0" + b"t" * 24 + b"\1"


def sampled(number: int, **fields: Any) -> InferRequest:
    made = request(number, request_id=str(number), **fields)
    made.trace_context = SAMPLED
    return made


def mismatched(number: int, **fields: Any) -> InferRequest:
    """A sampled request that does not fit the model, or is for none."""
    head = kserve_pb2.ModelInferRequest(model_name="m", **fields)
    head.inputs.add(name="I", datatype="FP32", shape=[1])
    made = sampled(number)
    made.head = head.SerializeToString()
    return made


def spans_of(tracer: RecordedSpans) -> list[tuple[str, object, str | None]]:
    return [(s.name, s.attributes.get("triton.request_id"), s.error) for s in tracer.spans]


async def test_a_traced_request_that_is_refused_has_its_span() -> None:
    it = AdmissionWorld(max_queue_size=1)
    it.ready()
    it.gateway.on_items(
        [
            mismatched(1),
            mismatched(2, model_version="7"),
            sampled(3, deadline=time.monotonic() - 1),
            sampled(4, error_status=(3, "a damaged body", False)),
            request(5),
            sampled(6),
            request(7),
        ]
    )
    refused = dict(it.errors())
    assert sorted(refused) == [1, 2, 3, 4, 6, 7]
    assert spans_of(it.tracer) == [("m", str(n), refused[n]) for n in (1, 2, 3, 4, 6)]
    assert "Exceeds maximum queue size" in refused[6]
    assert it.tracer.spans[1].attributes["triton.model_version"] == 7
    assert all(span.parent == SAMPLED for span in it.tracer.spans)
    assert len({span.context for span in it.tracer.spans}) == 5
    it.gateway.on_down()


async def test_a_traced_request_whose_model_is_not_loaded_has_one_span() -> None:
    it = AdmissionWorld(limit_s=0.0)
    it.gateway.on_items([sampled(1), request(2)])
    await asyncio.wait_for(it.load_queue.idle(), 5)
    later = AdmissionWorld()
    later.gateway.on_items([sampled(1), request(2)])
    later.served.life.report("a", LoadStatus.FAILED, "broken")
    later.admission.models_changed()
    await turn()
    for world in (it, later):
        assert spans_of(world.tracer) == [("m", "1", dict(world.errors())[1])]
        assert world.tracer.spans[0].start_ns <= world.tracer.spans[0].end_ns


async def test_a_head_that_cannot_be_read_is_refused_without_a_span() -> None:
    it = AdmissionWorld()
    bad = sampled(1)
    bad.head = b"\xff"
    it.gateway.on_items([bad])
    assert [number for number, _ in it.errors()] == [1]
    assert it.tracer.spans == []


async def test_tensors_of_other_files_are_refused_and_those_of_the_same_share_the_queue() -> None:
    it = AdmissionWorld()
    model = it.ready()
    digest = it.served.text_digest
    old = text_request(1, b"o" * 16)
    it.gateway.on_items([old, text_request(2, digest), request(3), text_request(4, digest)])
    it.gateway.on_items([text_request(5, b"o" * 16)])
    refusal = "model 'm' version 1 was loaded again with other files while a text was read for it"
    assert it.errors() == [(1, refusal), (5, refusal)]
    # A full queue would be no reason to read the files again.
    assert all(each.error.accepted for each in it.link.sent)
    assert len(model.requests.entries) == 3
    model.fail_all(Unavailable("over"))


async def test_a_reload_of_the_same_version_refuses_tensors_of_its_former_files() -> None:
    it = AdmissionWorld()
    it.ready()
    digest = it.served.text_digest
    it.gateway.on_items([text_request(1, digest)])
    newer = served_version(text_files=TextFiles({"tokenizer.json": "2"}, NO_TEXT_FILES.read_file))
    newer.runtime = ModelVersion(model_of(TENSORS), 1, VersionContext(QueueLimits(0)))
    it.catalogue.set_model(served_model("m", newer))
    it.admission.models_changed()
    it.gateway.on_items([text_request(2, digest), text_request(3, newer.text_digest)])
    assert [number for number, _ in it.errors()] == [2]


async def test_a_held_request_is_compared_with_the_version_that_becomes_ready() -> None:
    it = AdmissionWorld()
    it.gateway.on_items([text_request(1, b"o" * 16)])
    it.ready()
    await turn()
    assert [number for number, _ in it.errors()] == [1]


def text_request(number: int, digest: bytes) -> InferRequest:
    return request(number, text_digest=digest)


def second_version(it: AdmissionWorld, state: str = "loading") -> Any:
    """Add version 2 to the model, and divide the requests between both."""
    runtime = ModelVersion(model_of(TENSORS), 2, VersionContext(QueueLimits(0)))
    second = served_version(number=2, state=state, runtime=runtime)
    it.catalogue.set_model(served_model("m", it.served, second))
    traffic = it.catalogue.traffic
    traffic.apply("m", traffic.next_setting("m", make_traffic({1: 1, 2: 1}), 1))
    it.admission.models_changed()
    return second


async def test_requests_of_versions_by_weight_wait_for_their_own_version() -> None:
    it = AdmissionWorld(max_held=100)
    second = second_version(it)
    it.gateway.on_items([request(number) for number in range(1, 41)])
    assert len(it.load_queue) == 40
    first = it.ready()
    await turn()
    # Others could be executed by the first version, but are the second one's.
    others = len(it.load_queue)
    assert len(first.requests.entries) == 40 - others
    assert 5 < others < 35
    second.life.report("a", LoadStatus.UP)
    it.admission.models_changed()
    await turn()
    assert len(it.load_queue) == 0
    runtime = second.ready_runtime
    assert len(runtime.requests.entries) == others
    # From now on the choice is remembered, and made for each request.
    it.gateway.on_items([request(number) for number in range(41, 81)])
    for model in (first, runtime):
        assert 25 < len(model.requests.entries) < 55
        model.fail_all(Unavailable("over"))


async def test_a_request_that_no_weighted_version_may_have_is_refused() -> None:
    it = AdmissionWorld()
    it.ready().fail_all(Unavailable("over"))
    traffic = it.catalogue.traffic
    traffic.apply("m", traffic.next_setting("m", make_traffic({1: 0, 2: 1}), 1))
    it.admission.models_changed()
    it.gateway.on_items([request(1)])
    ((_, text),) = it.errors()
    assert text == "no version of model 'm' that its traffic goes to is ready"
