"""The identity backend: its model, and its parameters."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from nereid.backends import EMPTY_DESCRIPTION, InstanceSpec
from nereid.core.errors import InvalidArgument, Unimplemented
from nereid_executor.backends import identity
from nereid_executor.batch.runner import Runner
from tests.support.executor.instances import instance, responses
from tests.support.models.onnx_models import head, member, response_of

PAIR = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: 2 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 2 }
"""


def spec(text: str, name: str = "m_0", **parameters: str) -> InstanceSpec:
    made = instance(text, name=name)
    for key, value in parameters.items():
        made.config.parameters[key].string_value = value
    return made


def test_each_output_is_its_own_input() -> None:
    model = identity.load(spec(PAIR + PAIR.replace("0", "1")))
    first, second = np.ones((3, 2), np.float32), np.array([[b"\xff"]], np.object_)
    outputs = model.execute({"INPUT0": first, "INPUT1": second}, ["OUTPUT1", "OUTPUT0"])
    assert outputs[0] is second
    assert outputs[1] is first
    model.close()


def test_an_output_without_its_input_is_an_error() -> None:
    with pytest.raises(Unimplemented, match="failed to get input 'INPUT1'"):
        identity.load(spec(PAIR)).execute({}, ["OUTPUT1"])


OPTIONAL = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: 2 }
input { name: "INPUT1" data_type: TYPE_INT8 dims: [ -1, 2 ] optional: true }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 2 }
output { name: "OUTPUT1" data_type: TYPE_INT8 dims: [ -1, 2 ] }
"""


def test_absent_optional_inputs_are_zeros() -> None:
    given = np.ones((3, 2), np.float32)
    batching = identity.load(spec(OPTIONAL + "max_batch_size: 4"))
    first, second = batching.execute({"INPUT0": given}, ["OUTPUT0", "OUTPUT1"])
    assert first is given
    assert second.tolist() == [[[0, 0]]] * 3
    assert second.dtype == np.int8
    (alone,) = identity.load(spec(OPTIONAL)).execute({"INPUT0": given}, ["OUTPUT1"])
    assert alone.tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("written", "instead"),
    [("TYPE_INT8", "TYPE_STRING"), ("optional: true", "optional: true allow_ragged_batch: true")],
)
def test_absent_strings_and_ragged_inputs_are_errors(written: str, instead: str) -> None:
    model = identity.load(spec(OPTIONAL.replace(written, instead) + "max_batch_size: 4"))
    with pytest.raises(Unimplemented, match="failed to get input 'INPUT1'"):
        model.execute({"INPUT0": np.ones((1, 2), np.float32)}, ["OUTPUT1"])


def test_a_batch_without_a_regular_input_has_no_rows() -> None:
    text = OPTIONAL.replace("dims: 2 }", "dims: -1 allow_ragged_batch: true }", 1)
    text = text.replace(
        '"OUTPUT0" data_type: TYPE_FP32 dims: 2', '"OUTPUT0" data_type: TYPE_FP32 dims: -1'
    )
    model = identity.load(spec(text + "max_batch_size: 4"))
    with pytest.raises(Unimplemented, match="failed to get input 'INPUT1'"):
        model.execute({"INPUT0": np.ones(5, np.float32)}, ["OUTPUT1"])


def test_ragged_inputs_are_given_back_to_their_requests() -> None:
    text = PAIR.replace("dims: 2", "dims: -1 allow_ragged_batch: true", 1).replace(
        "dims: 2", "dims: -1"
    )
    made = spec(text + "max_batch_size: 4")
    xs = [
        np.arange(rows * size, dtype=np.float32).reshape(rows, size)
        for rows, size in [(1, 4), (2, 3)]
    ]
    members = [member(head(("INPUT0", "FP32", list(x.shape))), x.tobytes()) for x in xs]
    found = responses(Runner(made, identity.load(made)), *members)
    assert [response_of(each) for each in found] == [
        [("OUTPUT0", "FP32", list(x.shape), x.tobytes())] for x in xs
    ]


def test_the_description_is_empty() -> None:
    model = identity.load(spec(PAIR))
    assert identity.describe(spec(PAIR).config, Path("1")) is model.description is EMPTY_DESCRIPTION
    assert identity.uses_gpus() is False


@pytest.mark.parametrize(
    ("written", "instead", "text"),
    [
        (PAIR, "", "model configuration must have equal input/output pairs"),
        (
            PAIR[PAIR.index("output") :],
            "",
            "model configuration must have equal input/output pairs",
        ),
        ("INPUT0", "x", "expected input name to follow INPUT<index> pattern, got 'x'"),
        ("OUTPUT0", "y", "expected output name to follow OUTPUT<index> pattern, got 'y'"),
        ("OUTPUT0", "OUTPUT1", "expected input and output indices to match"),
        ("FP32", "STRING", "input and output datatype to match, got TYPE_STRING and TYPE_FP32"),
        ("dims: 2", "dims: [ 2, -1 ]", "input and output shape to match, got [2,-1] and [2]"),
    ],
)
def test_unpaired_tensors_are_refused(written: str, instead: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        identity.load(spec(PAIR.replace(written, instead, 1)))
    assert caught.value.message.endswith(text)


def test_shapes_are_compared_as_the_model_sees_them() -> None:
    reshaped = PAIR.replace("dims: 2", "dims: [ 2, 1 ] reshape { shape: 2 }", 1)
    assert identity.load(spec(reshaped))


@pytest.mark.parametrize(
    ("parameters", "name", "least_s"),
    [
        ({"execute_delay_ms": "20"}, "m_3", 0.020),
        ({"execute_delay_ms": "10", "instance_wise_delay_multiplier": "1"}, "m_0", 0.010),
        ({"execute_delay_ms": "10", "instance_wise_delay_multiplier": "1"}, "m_0_3", 0.030),
    ],
)
def test_an_execution_takes_as_long_as_configured(
    parameters: dict[str, str], name: str, least_s: float
) -> None:
    model = identity.load(spec(PAIR, name, **parameters))
    begun = time.perf_counter()
    model.execute({"INPUT0": np.zeros((1, 2), np.float32)}, ["OUTPUT0"])
    assert time.perf_counter() - begun >= least_s


def test_a_delay_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'execute_delay_ms' expects a whole number"):
        identity.load(spec(PAIR, execute_delay_ms="soon"))
