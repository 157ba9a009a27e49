"""The parameter that asks for padding, and the shapes that come of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.errors import InvalidArgument
from nereid.model_config import complete_config, freeze_config, parse_config
from nereid.model_config.padding import (
    PaddedInput,
    PaddedSize,
    Padding,
    count_padded_sizes,
    read_padding,
)
from nereid.pb import model_config_pb2
from tests.support.models.onnx_models import config

TENSORS = """
input { name: "ids" data_type: TYPE_INT32 dims: [ -1 ] }
input { name: "image" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }
input { name: "fixed:0" data_type: TYPE_UINT8 dims: [ -1, 4 ] }
input { name: "flag" data_type: TYPE_BOOL dims: [ -1 ] }
input { name: "half" data_type: TYPE_BF16 dims: [ -1 ] }
input { name: "text" data_type: TYPE_STRING dims: [ -1 ] }
input { name: "ragged" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
input { name: "other" data_type: TYPE_FP32 dims: [ -1 ] reshape { shape: [ -1, 1 ] } }
output { name: "y" data_type: TYPE_FP32 dims: [ 2, -1 ] }
output { name: "z" data_type: TYPE_FP32 dims: [ -1 ] }
batch_output { target_name: "z" source_input: "ragged" }
"""


def configured(text: str | None, max_batch_size: int = 4) -> model_config_pb2.ModelConfig:
    message = config(TENSORS)
    message.max_batch_size = max_batch_size
    if text is not None:
        message.parameters["padding"].string_value = text
    return message


def test_most_models_have_none() -> None:
    assert read_padding(configured(None)) is None


def test_all_that_can_be_written() -> None:
    text = "ids[0]=-1 fixed:0[0]=255 -> y[1]: 16, 32 64 ; image[1]=0.5 image[2]=0.5:8;flag[0]=1: 1"
    assert read_padding(configured(text)) == Padding(
        "m",
        (
            PaddedSize(
                (PaddedInput("ids", 0, -1), PaddedInput("fixed:0", 0, 255)),
                (("y", 1),),
                (16, 32, 64),
            ),
            PaddedSize((PaddedInput("image", 1, 0.5), PaddedInput("image", 2, 0.5)), (), (8,)),
            PaddedSize((PaddedInput("flag", 0, 1),), (), (1,)),
        ),
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "expected 'INPUT[DIM]=VALUE ... -> OUTPUT[DIM] ...: SIZE SIZE ...; ...' but got ''"),
        ("ids[0]", "-> OUTPUT[DIM] ...: SIZE SIZE ...; ...' but got 'ids[0]'"),
        ("-> y[1]: 4", "but got '-> y[1]: 4'"),
        ("ids[0]: 4; ", "but got ''"),
        ("ids: 4", "expected NAME[DIM] or NAME[DIM]=VALUE but got 'ids'"),
        ("ids[-1]: 4", "expected NAME[DIM] or NAME[DIM]=VALUE but got 'ids[-1]'"),
        ("ids[0]: four", "sizes must be whole numbers but are 'four'"),
        ("ids[0]:", "sizes must be positive and ascending but are ''"),
        ("ids[0]: 0 4", "sizes must be positive and ascending but are '0 4'"),
        ("ids[0]: 4 4", "sizes must be positive and ascending but are '4 4'"),
        ("ids[0] -> y[1]=3: 4", "output 'y' cannot have a value"),
        ("ids[0]=one: 4", "expected a number to pad with but got 'one'"),
        ("idz[0]: 4", "the model has no input 'idz'"),
        ("ids[0] -> x[0]: 4", "the model has no output 'x'"),
        ("ids[1]: 4", "input 'ids' has no variable dimension 1"),
        ("image[0]: 4", "input 'image' has no variable dimension 0"),
        ("ids[0] -> y[0]: 4", "output 'y' has no variable dimension 0"),
        ("ids[0] -> y[2]: 4", "output 'y' has no variable dimension 2"),
        ("ids[0] -> z[0]: 4", "output 'z' is a target of batch_output"),
        ("ids[0] ids[0]: 4", "dimension 0 of input 'ids' is named more than once"),
        ("ids[0] -> y[1]: 4; image[1] -> y[1]: 4", "dimension 1 of output 'y' is named more than"),
        ("other[0]: 4", "input 'other' has a reshape"),
        ("ragged[0]: 4", "input 'ragged' is ragged and needs no padding"),
        ("text[0]: 4", "input 'text' cannot be padded"),
        ("ids[0]=0.5: 4", "input 'ids' of type INT32 cannot be padded with 0.5"),
        ("ids[0]=2147483648: 4", "input 'ids' of type INT32 cannot be padded with 2147483648"),
        ("fixed:0[0]=-1: 4", "input 'fixed:0' of type UINT8 cannot be padded with -1"),
        ("flag[0]=2: 4", "input 'flag' of type BOOL cannot be padded with 2"),
        ("half[0]=1: 4", "input 'half' of type BF16 cannot be padded with 1"),
        ("image[1]=1: 4; image[2]=2: 4", "input 'image' is padded with different values"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(text: str, error: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_padding(configured(text))
    assert caught.value.message.startswith("parameter 'padding' of model 'm': ")
    assert error in caught.value.message


def test_an_ensemble_needs_no_padding() -> None:
    message = configured("ids[0]: 4")
    message.ensemble_scheduling.SetInParent()
    with pytest.raises(InvalidArgument, match="an ensemble runs no batches"):
        read_padding(message)


def test_a_model_without_batches_needs_no_padding() -> None:
    with pytest.raises(InvalidArgument, match="the model does not support batching"):
        read_padding(configured("ids[0]: 4", max_batch_size=0))


SIZES = Padding(
    "m",
    (
        PaddedSize((PaddedInput("a", 0, 0), PaddedInput("b", 1, 0)), (), (4, 8)),
        PaddedSize((PaddedInput("b", 0, 0),), (), (3,)),
    ),
)


@given(st.integers(0, 12), st.integers(0, 5))
def test_a_size_becomes_the_next_bucket(one: int, other: int) -> None:
    padded = SIZES.padded_shapes({"a": (one,), "b": (other, one), "c": (7,)})
    common = 4 if one <= 4 else max(8, one)
    assert padded == {"a": (common,), "b": (max(other, 3), common), "c": (7,)}


def test_inputs_that_are_not_there_are_not_compared() -> None:
    assert SIZES.padded_shapes({"b": (1, 5)}) == {"b": (3, 8)}


def test_sizes_that_must_be_equal() -> None:
    with pytest.raises(InvalidArgument) as caught:
        SIZES.padded_shapes({"a": (3,), "b": (3, 4)})
    assert caught.value.message == (
        "inputs 'a' and 'b' of model 'm' are padded together and must have the same size in "
        "dimensions 0 and 1, got 3 and 4"
    )


def test_shapes_are_open_in_the_padded_dimensions() -> None:
    assert SIZES.open_shapes({"a": (3,), "b": (5, 3), "c": (7,)}) == {
        "a": (-1,),
        "b": (-1, -1),
        "c": (7,),
    }
    with pytest.raises(InvalidArgument, match="are padded together"):
        SIZES.open_shapes({"a": (3,), "b": (4, 4)})


def test_the_length_is_that_of_the_first_padded_dimension() -> None:
    assert SIZES.length({"b": (3, 5), "c": (7,)}) == 5
    assert SIZES.length({"c": (7,)}) == 0


@pytest.mark.parametrize(("text", "count"), [(None, 0), ("ids[0]: 4", 1), ("a: 1; b: 2", 2)])
def test_sizes_are_counted_before_the_tensors_are_known(text: str | None, count: int) -> None:
    assert count_padded_sizes(configured(text)) == count


@pytest.mark.parametrize(
    ("padding", "tokens", "more", "error"),
    [
        ("ids[0]: 16", "4096", "dynamic_batching { }", None),
        (None, "4096", "dynamic_batching { }", "with one size"),
        ("image[1]: 8; image[2]: 8", "4096", "dynamic_batching { }", "with one size"),
        ("ids[0]: 16", "4096", "sequence_batching { }", "needs dynamic_batching"),
        ("ids[0]: 16", "0", "dynamic_batching { }", "at least 1 but got '0'"),
        ("ids[0]: 16", "many", "dynamic_batching { }", "a whole number but got 'many'"),
    ],
)
def test_a_budget_of_tokens_needs_one_padded_size(
    padding: str | None, tokens: str, more: str, error: str | None
) -> None:
    text = f'name: "m" backend: "onnxruntime" max_batch_size: 4 {TENSORS} {more}'
    draft = parse_config(text, model_name="m")
    draft.parameters["max_batch_tokens"].string_value = tokens
    if padding is not None:
        draft.parameters["padding"].string_value = padding
    if error is None:
        batching = freeze_config(complete_config(draft, model_name="m", description=None)).batching
        assert batching is not None
        assert batching.max_batch_tokens == 4096
        return
    with pytest.raises(InvalidArgument) as caught:
        complete_config(draft, model_name="m", description=None)
    assert caught.value.message.startswith("parameter 'max_batch_tokens' of model 'm'")
    assert error in caught.value.message
