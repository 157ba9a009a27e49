"""What a worker's model asks for, and the memory that goes there and back with it."""

import gc
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from nereid.core.messages import SharedMemory
from nereid.services.executor.backends.python.worker_site.nereid_worker import api, link, mesh, wire
from nereid.services.executor.backends.python.worker_site.nereid_worker.channel import Channel
from nereid.services.executor.backends.python.worker_site.nereid_worker.segments import Segments
from nereid.shm.mappings import SegmentMappings, exists
from nereid.shm.segments import Segment as ExecutorsSegment
from nereid.shm.segments import SegmentPool as ExecutorsSegments

# Models have no types.
pb: Any = api
COUNT = 50_000


@pytest.fixture
def executor() -> Iterator[Channel]:
    """The other end of the worker's link."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        it = link.Link(Channel(theirs))
        it.attend = lambda: None
        it.segments = Segments(1 << 24, idle_s=3600)
        link.connect(it)
        yield Channel(ours)
        link._link = None
        if it.segments._tidying is not None:
            it.segments._tidying.cancel()


@pytest.fixture
def segment() -> Iterator[ExecutorsSegment]:
    segments = ExecutorsSegments(1 << 20)
    segment = segments.acquire_segment(1 << 19)
    assert segment is not None
    yield segment
    segments.discard_used_segments()


def request(size: int = COUNT) -> Any:
    return pb.InferenceRequest(
        model_name="m",
        requested_output_names=["Y"],
        inputs=[pb.Tensor("X", np.arange(size, dtype=np.float32))],
    )


def heard(executor: Channel) -> list[wire.Call]:
    calls = []
    while (frame := executor.take()) is not None:
        assert frame[0] == wire.CALL
        calls.append(wire.read_call(frame[1]))
    return calls


def told(call: wire.Call) -> Any:
    return json.loads(call.meta)


def response(call: wire.Call, *tensors: Any, flags: int = 0) -> None:
    """As the executor does, with what stands beside the tensors."""
    about: Any = {"outputs": [["Y", "UINT8", [3]]] * len(tensors), "parameters": {}}
    if flags & wire.ERROR:
        about = ["UNAVAILABLE", "no"]
    reply = wire.Call(call.number, flags, json.dumps(about).encode(), tensors)
    body = bytearray(b"".join(map(bytes, wire.call_parts(reply))))
    link.link().responded(body)


def test_a_large_request_lies_in_the_workers_memory(executor: Channel) -> None:
    names = set()
    for _ in range(3):
        made = request()
        future = mesh.ask_once(made)
        (call,) = heard(executor)
        (place,) = call.tensors
        assert told(call)["inputs"] == [["X", "FP32", [COUNT]]]
        seen = np.frombuffer(SegmentMappings().view(SharedMemory(*place)), np.float32)
        assert np.array_equal(seen, made.inputs()[0].as_numpy())
        names.add(place.segment)
        response(call, b"abc")
        assert bytes(future.result(0).output_tensors()[0].as_numpy()) == b"abc"
    assert len(names) == 1, "an answered request's memory is the next one's"


def test_a_request_travels_with_all_that_it_was_made_of(executor: Channel) -> None:
    context = json.dumps({"traceparent": "00-ab-cd-01"})
    made = pb.InferenceRequest(
        request_id="q",
        correlation_id="s",
        inputs=[pb.Tensor("X", np.zeros((1, 2), np.int8)), pb.Tensor("Y", np.array([b"ab"]))],
        requested_output_names=["A", "B"],
        model_name="m",
        model_version=3,
        flags=1,
        timeout=9,
        preferred_memory=pb.PreferredMemory(pb.TRITONSERVER_MEMORY_CPU, 0),
        trace=pb.InferenceTrace(context),
        parameters={"a": 1, "b": "c", "d": True},
    )
    made.set_flags(2)
    mesh.ask_once(made)
    (call,) = heard(executor)
    assert told(call) == {
        "what": "infer",
        "model": "m",
        "version": 3,
        "id": "q",
        "inputs": [["X", "INT8", [1, 2]], ["Y", "BYTES", [1]]],
        "outputs": ["A", "B"],
        "parameters": {"a": 1, "b": "c", "d": True},
        "correlation_id": "s",
        "flags": 2,
        "timeout_us": 9,
        "trace": "00-ab-cd-01",
    }
    assert [bytes(each) for each in call.tensors] == [b"\0\0", b"\2\0\0\0ab"]


def test_models_are_loaded_unloaded_and_asked_about(executor: Channel) -> None:
    """Each of these waits for its answer, so somebody has to give it."""
    asked = []

    def run(work: Callable[[], Any], reply: Any, flags: int = 0) -> Any:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            kind, body = executor.receive()
            assert kind == wire.CALL
            call = wire.read_call(body)
            asked.append((told(call), [bytes(each) for each in call.tensors]))
            meta = json.dumps(reply).encode()
            parts = wire.call_parts(wire.Call(call.number, flags, meta, ()))
            link.link().responded(bytearray(b"".join(map(bytes, parts))))
            return future.result(10)

    assert run(lambda: pb.load_model("m", config="{}", files={"file:1/a": b"xy"}), None) is None
    assert run(lambda: pb.unload_model("m", unload_dependents=True), None) is None
    assert run(lambda: pb.unload_model("m"), None) is None
    assert run(lambda: pb.is_model_ready("m"), False) is False
    assert run(lambda: pb.is_model_ready("m", model_version="2"), True) is True
    link.link().instance = "me_0"
    text = "Failed to load model: Failed to process the request for model 'me_0', message: no m"
    with pytest.raises(pb.TritonModelException, match=f"^{text}$"):
        run(lambda: pb.load_model("m"), ["INTERNAL", "no m"], wire.ERROR)
    assert asked == [
        ({"what": "load", "model": "m", "config": "{}", "files": ["file:1/a"]}, [b"xy"]),
        ({"what": "unload", "model": "m", "dependents": True}, []),
        ({"what": "unload", "model": "m", "dependents": False}, []),
        ({"what": "ready", "model": "m", "version": ""}, []),
        ({"what": "ready", "model": "m", "version": "2"}, []),
        ({"what": "load", "model": "m", "config": "", "files": []}, []),
    ]


def test_a_small_request_travels_inline(executor: Channel) -> None:
    mesh.ask_once(request(10))
    (call,) = heard(executor)
    assert bytes(call.tensors[0]) == np.arange(10, dtype=np.float32).tobytes()


@pytest.mark.parametrize("how", ["error", "many", "let go"])
def test_memory_that_may_still_be_read_is_let_go_of(executor: Channel, how: str) -> None:
    if how == "error":
        future = mesh.ask_once(request())
        (call,) = heard(executor)
        response(call, flags=wire.ERROR)
        assert future.result(0).has_error()
    else:
        responses = mesh.ask_many(request())
        (call,) = heard(executor)
        if how == "many":
            response(call, b"abc", flags=wire.MORE)
            response(call, b"def")
            assert len(list(responses)) == 2
        del responses
        gc.collect()
    assert not exists(call.tensors[0].segment)
    assert link.link().segments.total == 0


def test_a_response_is_held_in_place(executor: Channel, segment: ExecutorsSegment) -> None:
    segment.view[64:70] = b"abcdef"
    future = mesh.ask_once(request(10))
    (call,) = heard(executor)
    places = [wire.Range(*segment.range(64, 3)), wire.Range(*segment.range(67, 3))]
    response(call, *places)
    first, second = future.result(0).output_tensors()
    del future
    gc.collect()
    assert bytes(first.as_numpy()) + bytes(second.as_numpy()) == b"abcdef"
    del first
    gc.collect()
    assert not heard(executor)
    del second
    gc.collect()
    assert [told(each) for each in heard(executor)] == [
        {"what": "release", "segment_name": segment.name}
    ]


def test_a_response_that_nobody_wants_is_given_back(
    executor: Channel, segment: ExecutorsSegment
) -> None:
    responses = mesh.ask_many(request(10))
    (call,) = heard(executor)
    del responses
    gc.collect()
    response(call, wire.Range(*segment.range(0, 3)))
    assert [told(each) for each in heard(executor)] == [
        {"what": "cancel", "call": call.number},
        {"what": "release", "segment_name": segment.name},
    ]


def test_a_response_that_is_gone_is_an_error(executor: Channel, segment: ExecutorsSegment) -> None:
    future = mesh.ask_once(request(10))
    (call,) = heard(executor)
    place = wire.Range(*segment.range(0, 3))
    gone = place._replace(segment=f"{segment.name}0")
    response(call, gone)
    error: Any = future.result(0).error()
    assert error.message() == "the executor was lost with its answer"
    assert [told(each)["what"] for each in heard(executor)] == ["release"]


def test_of_many_responses_that_are_held_some_are_copied(
    executor: Channel, segment: ExecutorsSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_MOST_BORROWED", 0)
    segment.view[:3] = b"abc"
    future = mesh.ask_once(request(10))
    (call,) = heard(executor)
    response(call, wire.Range(*segment.range(0, 3)))
    gc.collect()
    assert [told(each)["what"] for each in heard(executor)] == ["release"]
    segment.view[:3] = b"xyz"
    assert bytes(future.result(0).output_tensors()[0].as_numpy()) == b"abc"


def test_who_no_longer_waits_has_the_request_cancelled(executor: Channel) -> None:
    future = mesh.ask_once(request(10))
    (call,) = heard(executor)
    assert future.cancel()
    assert [told(each) for each in heard(executor)] == [{"what": "cancel", "call": call.number}]
    # It was on its way.
    response(call, b"abc")
    assert future.cancelled()
