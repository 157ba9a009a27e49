"""Configurations completed with executors' descriptions of model files."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import parse_config
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.placement.models.config_completion import (
    CompletionRules,
    complete,
    needs_description,
)

TENSORS = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def rules(disabled: bool = False, **settings: str) -> CompletionRules:
    named = {key.replace("_", "-"): value for key, value in settings.items()}
    return CompletionRules(disabled, lambda backend: named if backend == "onnxruntime" else {})


def draft(text: str) -> model_config_pb2.ModelConfig:
    return parse_config(f'name: "m" backend: "onnxruntime" {text}', model_name="m")


def described() -> pb.Described:
    message = pb.Described()
    for where, name in ((message.inputs, "IN"), (message.outputs, "OUT")):
        where.add(name=name, data_type=model_config_pb2.TYPE_FP32, dims=[-1, 2])
    return message


@pytest.mark.parametrize(
    ("text", "disabled", "needed"),
    [
        ("", False, True),
        ("", True, False),
        (TENSORS, False, False),
        (TENSORS.replace("dims: [ 2 ]", "", 1), False, True),
        (TENSORS.replace("data_type: TYPE_FP32", "", 1), False, True),
        (TENSORS.partition("output")[0], False, True),
    ],
)
def test_a_description_is_needed_only_for_missing_fields(
    text: str, disabled: bool, needed: bool
) -> None:
    assert needs_description(draft(text), rules(disabled)) is needed


def test_a_batchable_model_gets_the_backends_default_batch_size() -> None:
    assert complete(draft(""), described(), rules()).max_batch_size == 4
    config = complete(draft(""), described(), rules(default_max_batch_size="16"))
    assert config.max_batch_size == 16
    assert config.batching is not None


def test_without_a_description_it_is_taken_as_written() -> None:
    config = complete(draft(TENSORS), None, rules())
    assert (config.max_batch_size, config.batching) == (0, None)


def test_an_empty_description_is_ignored() -> None:
    config = complete(draft(TENSORS), pb.Described(command=1), rules())
    assert (config.max_batch_size, config.batching) == (0, None)
    with pytest.raises(InvalidArgument, match="'IN' must specify 'dims'"):
        complete(draft(TENSORS.replace("dims: [ 2 ]", "", 1)), pb.Described(), rules())


def test_an_invalid_configuration_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="default-max-batch-size"):
        complete(draft(""), described(), rules(default_max_batch_size="some"))
    with pytest.raises(InvalidArgument):
        complete(draft(TENSORS + "max_batch_size: -1"), None, rules())


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "shape"), [([-1], 0, (-1,)), ([-1, -1], 32, (-1,))]
)
def test_the_tokens_of_an_export_are_no_batch(
    dims: list[int], max_batch_size: int, shape: tuple[int, ...]
) -> None:
    message = pb.Described()
    for name in ("input_ids", "attention_mask"):
        message.inputs.add(name=name, data_type=model_config_pb2.TYPE_INT64, dims=dims)
    kind = model_config_pb2.TYPE_FP32
    message.outputs.add(name="last_hidden_state", data_type=kind, dims=[*dims, 8])
    files = {"tokenizer.json": b"", "config.json": b"{}"}
    config = complete(draft(""), message, rules(), files)
    assert config.max_batch_size == max_batch_size
    assert [tensor.dims for tensor in config.inputs] == [shape, shape]
    if config.batching is not None:
        assert config.batching.preferred_batch_sizes == (max_batch_size,)
    # Without a tokenizer it may be anything.
    assert complete(draft(""), message, rules(), {"config.json": b"{}"}).max_batch_size == 4
