"""Batches of exported encoders: padding, and the models that stay as they are."""

from __future__ import annotations

import pytest

from nereid.model_config.padding import PADDING, read_padding
from nereid.pb import model_config_pb2
from nereid.text import read_mapping
from nereid.text.export_batching import bucket_sizes, complete_export
from tests.support.models import decision_models
from tests.support.models.onnx_models import config

INPUTS = """
input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
"""
TYPES = 'input { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] }\n'
HIDDEN = 'output { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 8 ] }\n'
LOGITS = 'output { name: "logits" data_type: TYPE_FP32 dims: [ 2 ] }\n'
FACTS = b'{"max_position_embeddings": 40, "pad_token_id": 1}'
CAUSAL = b'{"architectures": ["GPT2LMHeadModel"]}'
PADDED = "input_ids[0]=1 attention_mask[0]"
NOTHING = model_config_pb2.ModelConfig()
FILES = {"tokenizer.json": b"", "config.json": FACTS}


def configured(tensors: str, max_batch_size: int = 4) -> model_config_pb2.ModelConfig:
    message = config(tensors)
    message.max_batch_size = max_batch_size
    return message


@pytest.mark.parametrize(
    ("tensors", "padding"),
    [
        (
            INPUTS + TYPES + HIDDEN,
            f"{PADDED} token_type_ids[0] -> last_hidden_state[0]: 16 24 32 40",
        ),
        (INPUTS + LOGITS, f"{PADDED}: 16 24 32 40"),
    ],
)
def test_an_encoder_is_padded(tensors: str, padding: str) -> None:
    message = configured(tensors)
    complete_export(message, FILES, NOTHING)
    assert message.parameters[PADDING].string_value == padding
    assert message.parameters["max_batch_tokens"].string_value == "16384"
    assert message.max_batch_size == 32
    assert message.HasField("dynamic_batching")
    assert read_padding(message) is not None
    mapping = read_mapping(message, FILES)
    assert mapping is not None
    assert mapping.batches_lengths


def test_what_an_overlay_says_is_kept() -> None:
    message = configured(INPUTS + HIDDEN)
    written = model_config_pb2.ModelConfig(max_batch_size=4)
    written.dynamic_batching.preferred_batch_size[:] = [2]
    message.MergeFrom(written)
    complete_export(message, FILES, written)
    assert message.max_batch_size == 4
    assert list(message.dynamic_batching.preferred_batch_size) == [2]
    assert PADDING in message.parameters


def test_batches_of_logits_of_a_vocabulary_are_small() -> None:
    message = configured(INPUTS + LOGITS.replace("[ 2 ]", "[ -1, 30522 ]"))
    complete_export(
        message, {**FILES, "modules.json": b'[{"type": "models.SpladePooling"}]'}, NOTHING
    )
    assert message.parameters[PADDING].string_value == f"{PADDED} -> logits[0]: 16 24 32 40"
    assert message.parameters["max_batch_tokens"].string_value == "1024"


def test_positions_are_padded() -> None:
    message = configured(INPUTS + TYPES.replace("token_type_ids", "position_ids") + HIDDEN)
    complete_export(message, FILES, NOTHING)
    padding = message.parameters[PADDING].string_value
    assert padding.startswith(f"{PADDED} position_ids[0]=1 -> last_hidden_state[0]: 16 ")


def test_questions_of_a_package_are_padded_in_tokens_and_options() -> None:
    files = decision_models.package_files({})
    message = configured(decision_models.PACKAGE)
    complete_export(message, files, NOTHING)
    tokens, options = message.parameters[PADDING].string_value.split("; ")
    assert tokens.startswith("input_ids[0]=0 attention_mask[0]: 16 24 ")
    assert "max_batch_tokens" not in message.parameters
    assert options == "marker_positions[0] marker_mask[0] -> option_logits[0]: 4 16 64"
    assert read_padding(message) is not None
    fixed = configured(decision_models.PACKAGE.replace("FP32 dims: [ -1 ]", "FP32 dims: [ 9 ]"))
    complete_export(fixed, files, NOTHING)
    assert ";" not in fixed.parameters[PADDING].string_value


@pytest.mark.parametrize(
    ("tensors", "max_batch_size", "files"),
    [
        (INPUTS + HIDDEN, 0, FILES),
        (INPUTS + HIDDEN, 4, {"config.json": FACTS}),
        (INPUTS + HIDDEN, 4, {**FILES, "config.json": b"{"}),
        ((INPUTS + HIDDEN).replace("[ -1", "[ 8"), 4, FILES),
        ((INPUTS + HIDDEN).replace("attention_mask", "other"), 4, FILES),
        (INPUTS.split("\n")[1] + HIDDEN, 4, FILES),
        (INPUTS + LOGITS.replace("[ 2 ]", "[ -1, 9 ]"), 4, {**FILES, "config.json": CAUSAL}),
    ],
    ids=["no batches", "no text", "damaged", "fixed", "other inputs", "no mask", "generator"],
)
def test_other_models_do_not_change(
    tensors: str, max_batch_size: int, files: dict[str, bytes]
) -> None:
    message = configured(tensors, max_batch_size)
    before = configured(tensors, max_batch_size)
    complete_export(message, files, NOTHING)
    assert message == before


def test_buckets_end_at_the_limit() -> None:
    assert bucket_sizes(8) == [8]
    assert bucket_sizes(64) == [16, 24, 32, 48, 64]
    assert bucket_sizes(100) == [16, 24, 32, 48, 64, 96, 100]
