"""Any configuration at all, with any model file: it is frozen and shown, or it is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nereid.backends import ModelDescription, TensorDescription
from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import NAMES as NAMES_OF_DATATYPES
from nereid.model_config import (
    complete_config,
    config_json,
    freeze_config,
    metadata,
    normalise_instance_groups,
    parse_config,
    select_versions,
    validate_config,
)
from nereid.pb import model_config_pb2

NAMES = st.sampled_from(["", "x", "y", "z"])
WORDS = {
    "platform": st.sampled_from(["", "ensemble", "onnxruntime_onnx", "tensorrt_plan"]),
    "backend": st.sampled_from(["", "onnxruntime", "python"]),
}
SMALL = st.sampled_from([0, 1, 2, 4, 8])
NUMBERS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_UINT32: SMALL,
    FieldDescriptor.TYPE_UINT64: SMALL | st.just(2**64 - 1),
    FieldDescriptor.TYPE_INT32: SMALL | st.sampled_from([-1, -(2**31)]),
    FieldDescriptor.TYPE_INT64: SMALL | st.sampled_from([-1, 2**63 - 1, -(2**63)]),
}


def fill(draw: st.DrawFn, message: Message, share: int) -> None:
    """Set about every share-th field of a message, at every level."""
    for field in message.DESCRIPTOR.fields:
        if draw(st.integers(0, share - 1)):
            continue
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            values = getattr(message, field.name)
            key = draw(value_of(kind.fields_by_name["key"]))
            if kind.fields_by_name["value"].message_type:
                fill(draw, values[key], share)
            else:
                values[key] = draw(NAMES)
        elif kind is not None and field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                fill(draw, getattr(message, field.name).add(), share)
        elif kind is not None:
            getattr(message, field.name).SetInParent()
            fill(draw, getattr(message, field.name), share)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(value_of(field), max_size=3)))
        else:
            setattr(message, field.name, draw(value_of(field)))


def value_of(field: Any) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_STRING:
        return WORDS.get(field.name, NAMES)
    if field.enum_type is not None:
        return st.sampled_from([*field.enum_type.values_by_number, 99])
    return NUMBERS[field.type]


@st.composite
def configs(draw: st.DrawFn) -> model_config_pb2.ModelConfig:
    config = model_config_pb2.ModelConfig()
    fill(draw, config, draw(st.sampled_from([2, 3, 5])))
    if draw(st.booleans()):
        # Most of what is drawn is refused early; let some of it get further.
        config.name, config.platform, config.backend = "m", "onnxruntime_onnx", "onnxruntime"
        del config.input[:], config.output[:], config.batch_input[:], config.batch_output[:]
        del config.model_warmup[:]
    return config


TENSORS = st.lists(
    st.builds(
        TensorDescription,
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from([*NAMES_OF_DATATYPES, "INVALID"]),
        st.none() | st.lists(st.sampled_from([-1, 1, 4]), max_size=3).map(tuple),
        st.booleans(),
    ),
    max_size=3,
    unique_by=lambda tensor: tensor.name,
).map(tuple)


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(configs(), st.none() | st.builds(ModelDescription, TENSORS, TENSORS))
def test_any_configuration_is_frozen_or_refused(
    config: model_config_pb2.ModelConfig, description: ModelDescription | None
) -> None:
    json.loads(config_json(config))
    select_versions(config.version_policy, [1, 2])
    # An error other than this one fails the test.
    with suppress(InvalidArgument):
        validate_config(config)
    try:
        completed = complete_config(config, model_name="m", description=description)
        frozen = freeze_config(completed)
        normalise_instance_groups(completed, gpu_ids=(0,))
    except InvalidArgument:
        return
    assert frozen.proto == completed
    assert len(metadata(frozen, [1]).inputs) == len(completed.input)
    again = complete_config(completed, model_name="m", description=description)
    assert again == completed
    assert parse_config(str(completed), model_name="m") == completed


@settings(deadline=None, max_examples=60)
@given(TENSORS, TENSORS)
def test_any_model_file_that_can_be_served_needs_no_configuration(
    inputs: tuple[TensorDescription, ...], outputs: tuple[TensorDescription, ...]
) -> None:
    config = parse_config('backend: "onnxruntime"', model_name="m")
    description = ModelDescription(inputs, outputs)
    required = [tensor for tensor in inputs if not tensor.optional]
    shown = [*required, *outputs]
    if any(tensor.datatype == "INVALID" for tensor in shown):
        with pytest.raises(InvalidArgument, match="must specify 'data_type'"):
            complete_config(config, model_name="m", description=description)
        return
    completed = complete_config(config, model_name="m", description=description)
    assert [tensor.name for tensor in completed.input] == [tensor.name for tensor in required]
    assert [tensor.name for tensor in completed.output] == [tensor.name for tensor in outputs]
    batchable = all(tensor.dims and tensor.dims[0] == -1 for tensor in shown)
    assert completed.max_batch_size == (4 if batchable else 0)
    assert completed.HasField("dynamic_batching") is batchable
