"""The executor's side of shared memory: requests read in place, answers lent."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from nereid.core.errors import Internal, Unavailable
from nereid.core.messages import SharedMemory
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.backends import InstanceSpec
from nereid.services.executor.batch.batch_runner import Runner
from nereid.services.executor.segments import Lender, Slabs
from nereid.shm.segments import Segments, read
from tests.support.executor.doubler import Doubler
from tests.support.models.onnx_models import head, identity_config, member

MIB = 1 << 20
ELEMENTS = 50_000


def runner(model: Doubler, slabs: Slabs) -> Runner:
    config = identity_config("FP32", "-1", 8)
    spec = InstanceSpec(config=config, version=1, version_path=Path("1"), name="m_0")
    made = Runner(spec, model, None, slabs.view)
    made.lender = Lender(slabs)
    return made


def shared(gateway: Segments, array: np.ndarray, offset: int = 0) -> pb.BatchMember:
    raw = array.tobytes()
    segment = gateway.take(offset + len(raw))
    assert segment is not None
    segment.view[offset : offset + len(raw)] = raw
    memory = pb.SharedMemory(slab=segment.name, offset=offset, size_bytes=len(raw))
    return pb.BatchMember(
        head=head(("x", "FP32", list(array.shape))), payloads=[pb.Payload(shared_memory=memory)]
    )


def execute(run: Runner, *members: pb.BatchMember) -> list[pb.Answer]:
    batch = pb.Batch(id=1, members=members).SerializeToString()
    return list(pb.Executed.FromString(run.execute(batch)).answers)


def output(answer: pb.Answer) -> bytes:
    memory = answer.payloads[0].shared_memory
    return read(SharedMemory(memory.slab, memory.offset, memory.size_bytes))


def test_members_in_shared_memory_and_inline_share_a_batch() -> None:
    gateway, slabs, model = Segments(8 * MIB), Slabs(8 * MIB), Doubler()
    arrays = [np.full((1, ELEMENTS), value, np.float32) for value in (1, 2, 3)]
    # The second one lies where no float should.
    members = [shared(gateway, arrays[0]), shared(gateway, arrays[1], offset=3)]
    members.append(member(head(("x", "FP32", [1, ELEMENTS])), arrays[2].tobytes()))
    answers = execute(runner(model, slabs), *members)
    assert [output(each) for each in answers] == [(2 * array).tobytes() for array in arrays]
    assert len(model.batches) == 1
    alone = execute(runner(model, slabs), members[1])
    assert output(alone[0]) == (2 * arrays[1]).tobytes()
    assert slabs.segments.taken == 4
    names = [each.payloads[0].shared_memory.slab for each in (*answers, *alone)]
    slabs.release(pb.Release(slabs=names[:3]))
    slabs.release(pb.Release(slabs=names[3:], discard=True))
    assert slabs.segments.taken == 0
    assert slabs.segments.total_bytes > 0


def test_small_answers_and_those_beyond_the_bound_go_inline() -> None:
    gateway = Segments(8 * MIB)
    large = np.ones((1, ELEMENTS), np.float32)
    for slabs, array in ((Slabs(8 * MIB), large[:, :10]), (Slabs(MIB // 16), large)):
        (answer,) = execute(runner(Doubler(), slabs), shared(gateway, array))
        assert answer.payloads[0].inline == (2 * array).tobytes()


def test_a_request_whose_data_is_gone_fails_alone() -> None:
    gateway, slabs = Segments(8 * MIB), Slabs(8 * MIB)
    array = np.ones((1, ELEMENTS), np.float32)
    lost, good = shared(gateway, array), shared(gateway, array)
    gateway.discard(lost.payloads[0].shared_memory.slab)
    first, second = execute(runner(Doubler(), slabs), lost, good)
    assert first.error.code == Unavailable.code
    assert output(second) == (2 * array).tobytes()


def test_a_batch_that_fails_while_it_is_answered_keeps_nothing_lent() -> None:
    slabs = Slabs(8 * MIB)
    lender = Lender(slabs)
    assert lender.lend([bytes(MIB)])
    lender.take_back()
    assert slabs.segments.taken == 0
    gateway = Segments(8 * MIB)
    failing = runner(Doubler(Internal("no")), slabs)
    (answer,) = execute(failing, shared(gateway, np.ones((1, ELEMENTS), np.float32)))
    assert answer.error.message == "no"
    assert slabs.segments.taken == 0


@pytest.mark.parametrize("end", ["stream", "scheduler"])
def test_what_is_lent_when_nobody_will_give_it_back_is_let_go_of(end: str) -> None:
    slabs = Slabs(8 * MIB)
    lender, other = Lender(slabs), Lender(slabs)
    assert lender.lend([bytes(MIB)])
    assert other.lend([bytes(MIB)])
    if end == "stream":
        lender.break_off()
        assert slabs.segments.taken == 1
    else:
        slabs.forget()
        assert slabs.segments.taken == 0
    slabs.tidy()


def test_other_threads_run_while_a_long_answer_is_copied() -> None:
    """Or nobody would answer the scheduler's pings, and the executor be taken for dead."""
    lender = Lender(Slabs(1 << 30))
    answer = [memoryview(bytes(64 << 20))]
    lender.lend(answer)
    go, ran = threading.Lock(), threading.Event()
    go.acquire()

    def work() -> None:
        with go:
            ran.set()

    other = threading.Thread(target=work)
    other.start()
    interval = sys.getswitchinterval()
    # From here on a thread runs until it lets the others.
    sys.setswitchinterval(1000)
    try:
        go.release()
        for _ in range(500):
            lender.take_back()
            lender.lent.clear()
            lender.lend(answer)
            if ran.is_set():
                break
        told = ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        other.join()
    assert told
