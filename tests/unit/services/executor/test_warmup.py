"""Warm-up samples as batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from nereid.core.byte_elements import join_bytes
from nereid.core.errors import InvalidArgument, NereidError
from nereid.core.messages import ErrorStatus
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.responses import encode_response, error_response
from nereid.services.executor.warmup import warm_up
from tests.support.models.onnx_models import config

TENSORS = "input { name: 'x' } input { name: 't' }"


class Executed:
    """Responds to batches, or fails them."""

    def __init__(self, error_status: ErrorStatus | None = None) -> None:
        self.batches: list[pb.Batch] = []
        self.error_status = error_status

    def __call__(self, frame: bytes) -> bytes:
        self.batches.append(pb.Batch.FromString(frame))
        return error_response(self.error_status) if self.error_status else encode_response(b"", [])


def sample(inputs: str, more: str = "batch_size: 1", batching: str = "max_batch_size: 4") -> object:
    return config(f"{batching} {TENSORS} model_warmup {{ name: 's' {more} {inputs} }}")


def an_input(name: str, text: str) -> str:
    return f"inputs {{ key: '{name}' value {{ {text} }} }}"


FP32 = an_input("x", "data_type: TYPE_FP32 dims: [2, 3] zero_data: true")


def warm(model_config: object, path: Path = Path()) -> list[pb.Batch]:
    executed = Executed()
    warm_up(model_config, path, executed)  # type: ignore[arg-type]
    return executed.batches


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
    with pytest.raises(InvalidArgument) as caught:
        warm_up(sample(FP32), Path(), Executed(ErrorStatus(14, "no")))  # type: ignore[arg-type]
    assert caught.value.message == "failed to run warmup sample 's': no; "


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
