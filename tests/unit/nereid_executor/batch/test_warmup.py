"""Warm-up samples as batches."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereid.core.errors import InvalidArgument, NereidError
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.wire.executed import encode_executed
from nereid.core.wire.messages import ErrorStatus
from nereid.model_config.validation.costs import MAX_WARMUP_BYTES
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.responses import encode_response, error_response
from nereid_executor.batch.warmup import (
    WarmupBatch,
    WarmupTurns,
    errors_of,
    read_samples,
    warm_up,
)
from tests.support.models.onnx_models import config

ENCODED = encode_response(b"", [])
TENSORS = "input { name: 'x' } input { name: 't' }"


class Executed:
    """Responds to batches, or fails them."""

    def __init__(self, error_status: ErrorStatus | None = None) -> None:
        self.batches: list[WarmupBatch] = []
        self.error_status = error_status

    def __call__(self, batch: WarmupBatch) -> bytes:
        self.batches.append(batch)
        response = error_response(self.error_status) if self.error_status else ENCODED
        return response * batch.size + encode_executed(0, 1, 2, 3)


class Load:
    """A load that is given up after so many questions; None: it is not."""

    def __init__(self, given_up_after: int | None = None) -> None:
        self.left = given_up_after

    def wait_given_up(self, timeout_s: float) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left < 0


def sample(inputs: str, more: str = "batch_size: 1", batching: str = "max_batch_size: 4") -> object:
    return config(f"{batching} {TENSORS} model_warmup {{ name: 's' {more} {inputs} }}")


def an_input(name: str, text: str) -> str:
    return f"inputs {{ key: '{name}' value {{ {text} }} }}"


FP32 = an_input("x", "data_type: TYPE_FP32 dims: [2, 3] zero_data: true")


def warm(model_config: object, path: Path = Path()) -> list[pb.Batch]:
    executed = Executed()
    assert warm_up(model_config, path, executed, Load(), WarmupTurns())  # type: ignore[arg-type]
    messages = [batch.to_message(parsed=True) for batch in executed.batches]
    return [pb.Batch(members=message.members) for message in messages]


def test_a_batch_is_made_of_requests_of_one_row() -> None:
    batches = warm(sample(FP32, "batch_size: 3 count: 2"))
    assert len(batches) == 2
    assert len(batches[0].members) == 3
    request = kserve_pb2.ModelInferRequest.FromString(batches[0].members[2].head)
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("x", "FP32", [1, 2, 3])
    assert batches[0].members[2].payloads[0].inline == bytes(24)


def test_without_batching_the_shape_is_the_dims() -> None:
    (batch,) = warm(sample(FP32, batching=""))
    request = kserve_pb2.ModelInferRequest.FromString(batch.members[0].head)
    assert list(request.inputs[0].shape) == [2, 3]


def test_a_sample_without_a_batch_size_is_skipped() -> None:
    assert warm(sample(FP32, "")) == []


@pytest.mark.parametrize(
    ("text", "length", "values"),
    [
        ("data_type: TYPE_STRING dims: 3 random_data: true", 12, {0}),
        ("data_type: TYPE_STRING dims: 3 zero_data: true", 12, {0}),
        ("data_type: TYPE_BOOL dims: 999 random_data: true", 999, {0, 1}),
        ("data_type: TYPE_UINT8 dims: 99999 random_data: true", 99999, set(range(256))),
        ("data_type: TYPE_INT16 dims: 2", 4, {0}),
    ],
)
def test_made_up_data(text: str, length: int, values: set[int]) -> None:
    (batch,) = warm(sample(an_input("x", text)))
    data = batch.members[0].payloads[0].inline
    assert len(data) == length
    assert set(data) == values


def test_data_from_files(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "numbers").write_bytes(bytes(range(6)))
    (tmp_path / "warmup" / "texts").write_bytes(join_bytes(["a", "b"]))
    inputs = an_input("x", "data_type: TYPE_UINT8 dims: 4 input_data_file: 'numbers'")
    inputs += an_input("t", "data_type: TYPE_STRING dims: 2 input_data_file: 'texts'")
    (batch,) = warm(sample(inputs), tmp_path)
    data = {payload.inline for payload in batch.members[0].payloads}
    assert data == {bytes(range(4)), join_bytes(["a", "b"])}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("data_type: TYPE_FP32 dims: -1", "input 'x' has variable dims"),
        ("data_type: TYPE_FP32 dims: 1 input_data_file: 'none'", "failed to open text file for"),
        (
            "data_type: TYPE_FP32 dims: 2 input_data_file: 'short'",
            "warmup setting expects 8 bytes, but the data provided from shortonly has 5 bytes",
        ),
    ],
)
def test_a_sample_that_is_wrong(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(bytes(5))
    with pytest.raises(NereidError) as caught:
        warm(sample(an_input("x", text)), tmp_path)
    assert reason in caught.value.message


def test_a_model_that_fails_on_a_sample_does_not_load() -> None:
    failing = Executed(ErrorStatus(14, "no"))
    with pytest.raises(InvalidArgument) as caught:
        warm_up(sample(FP32), Path(), failing, Load(), WarmupTurns())  # type: ignore[arg-type]
    assert caught.value.message == "failed to run warmup sample 's': no; "


def test_a_warm_up_ends_with_its_load() -> None:
    executed = Executed()
    twice = sample(FP32, "batch_size: 1 count: 10")
    assert not warm_up(twice, Path(), executed, Load(2), WarmupTurns())  # type: ignore[arg-type]
    assert len(executed.batches) == 2


def test_the_requests_of_a_sample_share_its_tensors() -> None:
    executed = Executed()
    large = an_input("x", "data_type: TYPE_UINT8 dims: 1048576 random_data: true")
    many = sample(large, "batch_size: 100 count: 2")
    tracemalloc.start()
    assert warm_up(many, Path(), executed, Load(), WarmupTurns())  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert executed.batches[0] is executed.batches[1]
    assert executed.batches[0].byte_count == 100 << 20
    assert peak < 8 << 20


def test_a_file_of_any_size_counts_as_often_as_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    with (tmp_path / "warmup" / "texts").open("wb") as file:
        file.truncate(MAX_WARMUP_BYTES // 4)
    text = an_input("t", "data_type: TYPE_STRING dims: 1 input_data_file: 'texts'")
    for _ in read_samples(sample(text, "batch_size: 4"), tmp_path):  # type: ignore[arg-type]
        pass
    with pytest.raises(InvalidArgument, match="must be at most 134217728 bytes in a batch"):
        next(read_samples(sample(text, "batch_size: 5"), tmp_path))  # type: ignore[arg-type]


class Meeting:
    """Executions that note how many there are at a time."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()

    def __call__(self, _: WarmupBatch) -> bytes:
        self.begun.release()
        self.may_end.wait()
        return b""


def in_threads(turns: WarmupTurns, meeting: Meeting, batch: WarmupBatch) -> list[threading.Thread]:
    threads = [threading.Thread(target=turns.execute, args=(batch, meeting)) for _ in range(2)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize(("size", "timeout_s"), [(1, 3600.0), (1 << 23, 0.01)])
def test_small_batches_and_those_behind_one_that_hangs_wait_for_nobody(
    size: int, timeout_s: float
) -> None:
    meeting = Meeting()
    batch = WarmupBatch(b"", [bytes(size)], 1)
    threads = in_threads(WarmupTurns(timeout_s), meeting, batch)
    for _ in threads:
        meeting.begun.acquire()
    meeting.may_end.set()
    for thread in threads:
        thread.join()


def test_large_batches_execute_one_after_another() -> None:
    meeting = Meeting()
    threads = in_threads(WarmupTurns(3600.0), meeting, WarmupBatch(b"", [bytes(1 << 23)], 1))
    meeting.begun.acquire()
    assert not meeting.begun.acquire(timeout=0.05)
    meeting.may_end.set()
    meeting.begun.acquire()
    for thread in threads:
        thread.join()


def test_only_tensors_that_the_model_has_are_sent() -> None:
    controls = (
        "sequence_batching { control_input { name: 'START' } state { input_name: 'h' } } "
        "input { name: 'x' }"
    )
    inputs = "".join(
        an_input(name, "data_type: TYPE_INT32 dims: 1 zero_data: true")
        for name in ("x", "START", "h", "unknown")
    )
    (batch,) = warm(config(f"{controls} model_warmup {{ name: 's' batch_size: 1 {inputs} }}"))
    request = kserve_pb2.ModelInferRequest.FromString(batch.members[0].head)
    assert {each.name for each in request.inputs} == {"x", "START", "h"}
    assert len(batch.members[0].payloads) == 3


@settings(max_examples=200)
@given(
    responses=st.lists(
        st.tuples(st.text(max_size=20), st.binary(max_size=300), st.booleans()), max_size=5
    ),
    numbers=st.tuples(*[st.integers(0, 2**64 - 1)] * 4),
)
def test_errors_are_those_that_protobuf_reads(
    responses: list[tuple[str, bytes, bool]], numbers: tuple[int, int, int, int]
) -> None:
    executed = pb.Executed(
        id=numbers[0],
        compute_input_ns=numbers[1],
        compute_infer_ns=numbers[2],
        compute_output_ns=numbers[3],
    )
    for text, payload, fails in responses:
        response = executed.responses.add(id=numbers[0], head=payload)
        response.payloads.add(inline=payload)
        if fails:
            response.error.message = text
    message = executed.SerializeToString()
    read = pb.Executed.FromString(message).responses
    assert errors_of(message) == [each.error.message for each in read if each.HasField("error")]
