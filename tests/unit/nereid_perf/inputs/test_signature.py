"""What requests look like, by what servers say."""

from __future__ import annotations

import pytest

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.signature import ModelSignature, TensorSpec, signature_of


def metadata(*inputs: dict[str, object]) -> dict[str, object]:
    return {"name": "m", "inputs": [*inputs], "outputs": [tensor("Y", [-1, 2])]}


def tensor(name: str, shape: list[object], datatype: str = "FP32") -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": shape}


def test_batching_model_has_its_batch_dimension_taken_off() -> None:
    found = signature_of(metadata(tensor("X", [-1, 4])), {"max_batch_size": 8})
    assert found == ModelSignature(
        (TensorSpec("X", "FP32", (4,)),), (TensorSpec("Y", "FP32", (2,)),), 8
    )


def test_model_without_batching_keeps_its_dimensions() -> None:
    found = signature_of(metadata(tensor("X", ["-1", "4"])), {"max_batch_size": 0})
    assert found.inputs == (TensorSpec("X", "FP32", (-1, 4)),)
    assert found.max_batch_size is None


def test_server_without_configurations_batches_where_all_inputs_begin_with_a_variable_size() -> (
    None
):
    found = signature_of(metadata(tensor("X", [-1, 4]), tensor("Z", [-1], "BYTES")), None)
    assert found.inputs == (TensorSpec("X", "FP32", (4,)), TensorSpec("Z", "BYTES", ()))
    assert found.max_batch_size == 0
    found = signature_of(metadata(tensor("X", [-1, 4]), tensor("Z", [1])), None)
    assert found.max_batch_size is None
    assert signature_of({"name": "m"}, None) == ModelSignature()


def test_sequences_with_control_inputs_and_optional_ones() -> None:
    corrid = {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_STRING"}
    config = {
        "max_batch_size": 4,
        "input": [{"name": "X", "optional": True}, {"name": "S", "is_shape_tensor": True}],
        "sequence_batching": {
            "control_input": [
                {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START"}]},
                {"name": "ID", "control": [corrid]},
            ]
        },
    }
    inputs = [tensor(name, [-1, 1]) for name in ("X", "S", "START", "ID")]
    found = signature_of(metadata(*inputs), config)
    assert found.inputs == (
        TensorSpec("X", "FP32", (1,), is_optional=True),
        TensorSpec("S", "FP32", (1,), is_shape=True),
    )
    assert found.is_sequence
    assert found.has_text_ids


def test_datatype_that_the_protocol_does_not_have() -> None:
    with pytest.raises(InputError, match="tensor 'X' the datatype 'STRING'"):
        signature_of(metadata(tensor("X", [1], "STRING")), None)
