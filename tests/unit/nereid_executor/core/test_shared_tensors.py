"""The executor's side of shared memory: requests read in place, responses lent."""

from __future__ import annotations

import sys
import threading

import numpy as np

from nereid.core.errors import Internal, Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid.shm.mappings import read
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import SegmentPool
from nereid_executor.batch.runner import Runner
from nereid_executor.core.shared_tensors import OutputLender, SharedTensors
from tests.support.executor.doubler import Doubler
from tests.support.executor.instances import instance, responses
from tests.support.models.onnx_models import head, identity_config, member

MIB = 1 << 20
ELEMENTS = 50_000


def runner(model: Doubler, shared_tensors: SharedTensors) -> Runner:
    spec = instance(identity_config("FP32", "-1", 8))
    made = Runner(spec, model, view=shared_tensors.view)
    made.begin_tenure(OutputLender(shared_tensors))
    return made


def shared(gateway: SegmentPool, array: np.ndarray, offset: int = 0) -> pb.BatchMember:
    raw = array.tobytes()
    segment = gateway.acquire_segment(offset + len(raw))
    assert segment is not None
    segment.view[offset : offset + len(raw)] = raw
    memory = pb.SharedMemory(segment_name=segment.name, offset=offset, size_bytes=len(raw))
    return pb.BatchMember(
        head=head(("x", "FP32", list(array.shape))), payloads=[pb.Payload(shared_memory=memory)]
    )


def output(response: pb.InferResponse) -> bytes:
    memory = response.payloads[0].shared_memory
    return read(SharedMemory(memory.segment_name, memory.offset, memory.size_bytes))


def test_members_in_shared_memory_and_inline_share_a_batch() -> None:
    gateway, shared_tensors, model = SegmentPool(8 * MIB), SharedTensors(8 * MIB), Doubler()
    arrays = [np.full((1, ELEMENTS), value, np.float32) for value in (1, 2, 3)]
    # The second one is not aligned.
    members = [shared(gateway, arrays[0]), shared(gateway, arrays[1], offset=3)]
    members.append(member(head(("x", "FP32", [1, ELEMENTS])), arrays[2].tobytes()))
    found = responses(runner(model, shared_tensors), *members)
    assert [output(each) for each in found] == [(2 * array).tobytes() for array in arrays]
    assert len(model.batches) == 1
    alone = responses(runner(model, shared_tensors), members[1])
    assert output(alone[0]) == (2 * arrays[1]).tobytes()
    assert shared_tensors.segments.used_count == 4
    names = [each.payloads[0].shared_memory.segment_name for each in (*found, *alone)]
    shared_tensors.release_segments(pb.Release(segment_names=names[:3]))
    shared_tensors.release_segments(pb.Release(segment_names=names[3:], discard=True))
    assert shared_tensors.segments.used_count == 0
    assert shared_tensors.segments.total_bytes > 0


def test_small_responses_and_those_beyond_the_bound_go_inline() -> None:
    gateway = SegmentPool(8 * MIB)
    large = np.ones((1, ELEMENTS), np.float32)
    for shared_tensors, array in (
        (SharedTensors(8 * MIB), large[:, :10]),
        (SharedTensors(MIB // 16), large),
    ):
        (response,) = responses(runner(Doubler(), shared_tensors), shared(gateway, array))
        assert response.payloads[0].inline == (2 * array).tobytes()


def test_a_request_whose_segment_is_discarded_fails_alone() -> None:
    gateway, shared_tensors = SegmentPool(8 * MIB), SharedTensors(8 * MIB)
    array = np.ones((1, ELEMENTS), np.float32)
    lost, good = shared(gateway, array), shared(gateway, array)
    gateway.discard(lost.payloads[0].shared_memory.segment_name)
    first, second = responses(runner(Doubler(), shared_tensors), lost, good)
    assert first.error.code == Unavailable.code
    assert output(second) == (2 * array).tobytes()


def test_a_failed_batch_keeps_nothing_lent() -> None:
    shared_tensors = SharedTensors(8 * MIB)
    lender = OutputLender(shared_tensors)
    assert lender.lend([bytes(MIB)])
    lender.free_lent()
    assert shared_tensors.segments.used_count == 0
    gateway = SegmentPool(8 * MIB)
    failing = runner(Doubler(Internal("no")), shared_tensors)
    (response,) = responses(failing, shared(gateway, np.ones((1, ELEMENTS), np.float32)))
    assert response.error.message == "no"
    assert shared_tensors.segments.used_count == 0


def test_what_will_never_be_released_is_discarded() -> None:
    shared_tensors = SharedTensors(8 * MIB)
    lender, other = OutputLender(shared_tensors), OutputLender(shared_tensors)
    assert lender.lend([bytes(MIB)])
    assert other.lend([bytes(MIB)])
    lender.discard_lent()
    assert shared_tensors.segments.used_count == 1
    shared_tensors.trim_idle()


def test_what_was_granted_ends_with_the_stream() -> None:
    shared_tensors = SharedTensors(8 * MIB)
    lender, other = OutputLender(shared_tensors), OutputLender(shared_tensors)
    first, second = lender.grant_buffer(MIB), lender.grant_buffer(MIB)
    assert first
    assert second
    other.end_grant(first.segment_name)
    assert shared_tensors.segments.used_count == 2
    lender.end_grant(first.segment_name)
    assert shared_tensors.segments.used_count == 1
    lender.discard_lent()
    assert shared_tensors.segments.total_bytes == 0
    lender.close()
    assert lender.grant_buffer(MIB) is None


def test_other_threads_run_while_a_long_response_is_copied() -> None:
    """Otherwise the scheduler's pings time out, and the executor is taken for dead."""
    lender = OutputLender(SharedTensors(1 << 30))
    response = [memoryview(bytes(64 << 20))]
    lender.lend(response)
    go, ran = threading.Lock(), threading.Event()
    go.acquire()

    def work() -> None:
        with go:
            ran.set()

    other = threading.Thread(target=work)
    other.start()
    interval = sys.getswitchinterval()
    # From here on a thread runs until it releases the interpreter's lock.
    sys.setswitchinterval(1000)
    try:
        go.release()
        for _ in range(500):
            lender.free_lent()
            lender.lent.clear()
            lender.lend(response)
            if ran.is_set():
                break
        has_run = ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        other.join()
    assert has_run
