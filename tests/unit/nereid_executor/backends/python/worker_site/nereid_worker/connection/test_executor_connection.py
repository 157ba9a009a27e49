"""Calls of a worker's model to the mesh, and the memory of their tensors."""

import asyncio
import gc
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from nereid.shm.mappings import SegmentMappings, exists
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import Segment as ExecutorsSegment
from nereid.shm.segments import SegmentPool as ExecutorsSegments
from nereid_executor.backends.python.worker_site.nereid_worker.connection import (
    executor_connection,
    request_segments,
)
from nereid_executor.backends.python.worker_site.nereid_worker.pb_utils import (
    api,
    model_calls,
    native_api,
)
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.channel import (
    Channel,
)

# Models have no types.
pb: Any = api
COUNT = 50_000


@pytest.fixture
def executor() -> Iterator[Channel]:
    """The executor's end of the connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = executor_connection.ExecutorConnection(Channel(theirs), release_s=3600)
        segments = request_segments.RequestSegmentPool(1 << 24, idle_s=3600)
        connection.enable_calls("m_0", lambda: None, dict, segments)
        executor_connection.set_connection(connection)
        yield Channel(ours)
        executor_connection._connection = None
        if segments._trim_timer is not None:
            segments._trim_timer.cancel()


@pytest.fixture
def segment() -> Iterator[ExecutorsSegment]:
    segments = ExecutorsSegments(1 << 23)
    segment = segments.acquire_segment(1 << 21)
    assert segment is not None
    yield segment
    segments.discard_segments_of(None)


def request(size: int = COUNT) -> Any:
    return pb.InferenceRequest(
        model_name="m",
        requested_output_names=["Y"],
        inputs=[pb.Tensor("X", np.arange(size, dtype=np.float32))],
    )


def received_calls(executor: Channel) -> list[wire.Call]:
    calls = []
    while (frame := executor.receive_nowait()) is not None:
        assert frame[0] == wire.CALL
        calls.append(wire.read_call(frame[1]))
    return calls


def infer(executor: Channel, size: int = 10) -> tuple[Any, wire.Call]:
    """A call of a model: the future of its response, and what the executor got."""
    future = model_calls.infer(request(size))
    (call,) = received_calls(executor)
    return future, call


def description(call: wire.Call) -> Any:
    return json.loads(call.meta)


def respond(
    call: wire.Call, *tensors: Any, flags: int = 0, shapes: list[list[int]] | None = None
) -> None:
    """As the executor does."""
    shapes = shapes or [[3]] * len(tensors)
    about: Any = {"outputs": [["Y", "UINT8", each] for each in shapes], "parameters": {}}
    if flags & wire.ERROR:
        about = ["UNAVAILABLE", "no"]
    reply = wire.Call(call.number, flags, json.dumps(about).encode(), tensors)
    body = bytearray(b"".join(map(bytes, wire.call_parts(reply))))
    executor_connection.current_connection().on_call_response(body)


def test_a_large_request_is_in_the_workers_segment(executor: Channel) -> None:
    names = set()
    for _ in range(3):
        made = request()
        future = model_calls.infer(made)
        (call,) = received_calls(executor)
        (place,) = call.tensors
        assert description(call)["inputs"] == [["X", "FP32", [COUNT]]]
        seen = np.frombuffer(SegmentMappings().view(SharedMemory(*place)), np.float32)
        assert np.array_equal(seen, made.inputs()[0].as_numpy())
        names.add(place.segment)
        respond(call, b"abc")
        assert bytes(future.result(0).output_tensors()[0].as_numpy()) == b"abc"
    assert len(names) == 1, "a request's memory is reused after its response"


def test_a_request_is_sent_with_all_its_properties(executor: Channel) -> None:
    context = json.dumps({"traceparent": "00-ab-cd-01", "tracestate": "a=1"})
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
    model_calls.infer(made)
    (call,) = received_calls(executor)
    assert description(call) == {
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
        "tracestate": "a=1",
    }
    assert [bytes(each) for each in call.tensors] == [b"\0\0", b"\2\0\0\0ab"]


def test_models_are_loaded_unloaded_and_queried(executor: Channel) -> None:
    """Each of these waits for its response."""
    calls = []

    def run(work: Callable[[], Any], reply: Any, flags: int = 0) -> Any:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            kind, body = executor.receive()
            assert kind == wire.CALL
            call = wire.read_call(body)
            calls.append((description(call), [bytes(each) for each in call.tensors]))
            meta = json.dumps(reply).encode()
            parts = wire.call_parts(wire.Call(call.number, flags, meta, ()))
            executor_connection.current_connection().on_call_response(
                bytearray(b"".join(map(bytes, parts)))
            )
            return future.result(10)

    assert run(lambda: pb.load_model("m", config="{}", files={"file:1/a": b"xy"}), None) is None
    assert run(lambda: pb.unload_model("m", unload_dependents=True), None) is None
    assert run(lambda: pb.unload_model("m"), None) is None
    assert run(lambda: pb.is_model_ready("m"), False) is False
    assert run(lambda: pb.is_model_ready("m", model_version="2"), True) is True
    executor_connection.current_connection().instance = "me_0"
    text = "Failed to load model: Failed to process the request for model 'me_0', message: no m"
    with pytest.raises(pb.TritonModelException, match=f"^{text}$"):
        run(lambda: pb.load_model("m"), ["INTERNAL", "no m"], wire.ERROR)
    assert calls == [
        ({"what": "load", "model": "m", "config": "{}", "files": ["file:1/a"]}, [b"xy"]),
        ({"what": "unload", "model": "m", "dependents": True}, []),
        ({"what": "unload", "model": "m", "dependents": False}, []),
        ({"what": "ready", "model": "m", "version": ""}, []),
        ({"what": "ready", "model": "m", "version": "2"}, []),
        ({"what": "load", "model": "m", "config": "", "files": []}, []),
    ]


@pytest.mark.parametrize("how", ["error", "many", "dropped"])
def test_a_segment_that_may_still_be_read_is_discarded(executor: Channel, how: str) -> None:
    if how == "error":
        future, call = infer(executor, COUNT)
        respond(call, flags=wire.ERROR)
        assert future.result(0).has_error()
    else:
        responses = model_calls.infer_stream(request())
        (call,) = received_calls(executor)
        if how == "many":
            respond(call, b"abc", flags=wire.MORE)
            respond(call, b"def")
            assert len(list(responses)) == 2
        del responses
        gc.collect()
    assert not exists(call.tensors[0].segment)
    assert executor_connection.current_connection().segments.total == 0


async def test_a_coroutine_gets_the_iterator_with_the_first_response(executor: Channel) -> None:
    """Models read it with a plain loop, in which no other coroutine runs."""
    started = request(10).async_exec(decoupled=True)
    others = request(10).async_exec(decoupled=True)
    calls = received_calls(executor)
    await asyncio.sleep(0)
    # Nobody but the event loop holds what waits for it.
    gc.collect()
    assert not started.done()
    respond(calls[0], b"abc", flags=wire.MORE)
    respond(calls[0], b"def")
    assert len(list(await started)) == 2
    assert not others.done()
    respond(calls[1], flags=wire.ERROR)
    assert [each.has_error() for each in await others] == [True]


def test_free_memory_is_what_no_request_in_flight_uses(executor: Channel) -> None:
    before = native_api.shared_memory.free_memory()
    assert before == 1 << 24
    future = model_calls.infer(request())
    assert native_api.shared_memory.free_memory() <= before - 4 * COUNT
    respond(received_calls(executor)[0], b"abc")
    assert future.result(0).output_tensors()
    assert native_api.shared_memory.free_memory() == before


def release_now() -> bool:
    """As after a while without a call; whether there was anything to release."""
    return executor_connection.current_connection()._calls._release_copied()


def test_a_response_is_copied_and_released(executor: Channel, segment: ExecutorsSegment) -> None:
    """Nothing is mapped for it: the segment stays mapped for the next response in it."""
    found: list[Any] = []
    for content in (b"abcdef", b"ghijkl"):
        segment.view[64:70] = content
        future, call = infer(executor)
        # The next call takes the release along.
        assert description(call).get("released") == ([segment.name] if found else None)
        places = [wire.Range(*segment.range(64, 3)), wire.Range(*segment.range(67, 3))]
        respond(call, *places)
        found += [each.as_numpy() for each in future.result(0).output_tensors()]
    assert not received_calls(executor)
    release_now()
    assert [description(each) for each in received_calls(executor)] == [
        {"what": "release", "segment_names": [segment.name]}
    ]
    assert b"".join(map(bytes, found)) == b"abcdefghijkl", "they are the model's own"
    assert all(each.flags.writeable for each in found)


def test_a_very_large_response_is_mapped_until_its_tensors_are_dropped(
    executor: Channel, segment: ExecutorsSegment
) -> None:
    size = 1 << 20
    segment.view[64 : 64 + size + 3] = b"a" * size + b"def"
    future, call = infer(executor)
    places = [wire.Range(*segment.range(64, size)), wire.Range(*segment.range(64 + size, 3))]
    respond(call, *places, shapes=[[size], [3]])
    first, second = future.result(0).output_tensors()
    del future
    gc.collect()
    assert bytes(first.as_numpy()) + bytes(second.as_numpy()) == b"a" * size + b"def"
    del first
    gc.collect()
    assert not received_calls(executor)
    del second
    gc.collect()
    assert [description(each) for each in received_calls(executor)] == [
        {"what": "release", "segment_names": [segment.name]}
    ]


def test_a_response_to_a_cancelled_call_is_released(
    executor: Channel, segment: ExecutorsSegment
) -> None:
    responses = model_calls.infer_stream(request(10))
    (call,) = received_calls(executor)
    del responses
    gc.collect()
    respond(call, wire.Range(*segment.range(0, 3)))
    assert release_now()
    assert [description(each) for each in received_calls(executor)] == [
        {"what": "cancel", "call": call.number},
        {"what": "release", "segment_names": [segment.name]},
    ]


def test_a_response_whose_segment_was_lost_is_an_error(
    executor: Channel, segment: ExecutorsSegment
) -> None:
    future, call = infer(executor)
    place = wire.Range(*segment.range(0, 3))
    gone = place._replace(segment=f"{segment.name}0")
    respond(call, gone)
    error: Any = future.result(0).error()
    assert error.message() == "the executor was lost before its response was read"
    assert [description(each)["what"] for each in received_calls(executor)] == ["release"]


def test_beyond_a_limit_held_responses_are_copied(
    executor: Channel, segment: ExecutorsSegment
) -> None:
    executor_connection.current_connection()._calls._max_mapped = 0
    size = 3 << 19
    segment.view[:3] = b"abc"
    future, call = infer(executor)
    respond(call, wire.Range(*segment.range(0, size)), shapes=[[size]])
    gc.collect()
    assert [description(each)["what"] for each in received_calls(executor)] == ["release"]
    segment.view[:3] = b"xyz"
    assert bytes(future.result(0).output_tensors()[0].as_numpy()[:3]) == b"abc"


def test_a_cancelled_future_cancels_the_request(executor: Channel) -> None:
    future, call = infer(executor)
    assert future.cancel()
    assert [description(each) for each in received_calls(executor)] == [
        {"what": "cancel", "call": call.number}
    ]
    # The response was already in flight.
    respond(call, b"abc")
    assert future.cancelled()
