"""States of exported decoders: which keys and values become one, and their first dims."""

from __future__ import annotations

import pytest

from nereid.model_config import complete_config
from nereid.pb import model_config_pb2
from nereid.text.export_states import add_states
from tests.support.models.onnx_models import config

IDS = """
input { name: "input_ids" data_type: TYPE_INT64 dims: [ DIMS ] }
output { name: "logits" data_type: TYPE_FP32 dims: [ DIMS, 9 ] }
"""
PAST = """
input { name: "past_key_values.0.key" data_type: TYPE_FP16 dims: [ DIMS ] }
output { name: "present.0.key" data_type: TYPE_FP16 dims: [ DIMS ] }
"""
BRANCH = 'input { name: "use_cache_branch" data_type: TYPE_BOOL dims: [ 1 ] }\n'
FILES = ("tokenizer.json",)


def configured(past: str, tokens: str = "-1", more: str = "") -> model_config_pb2.ModelConfig:
    return config(IDS.replace("DIMS", tokens) + PAST.replace("DIMS", past) + more)


def test_keys_and_values_become_states_that_grow() -> None:
    message = configured("2, -1, 4")
    message.max_batch_size = 4
    assert add_states(message, FILES)
    assert [tensor.name for tensor in message.input] == ["input_ids"]
    assert [tensor.name for tensor in message.output] == ["logits"]
    (state,) = message.sequence_batching.state
    assert (state.input_name, state.output_name) == ("past_key_values.0.key", "present.0.key")
    assert (state.data_type, list(state.dims)) == (model_config_pb2.TYPE_FP16, [2, -1, 4])
    assert list(state.initial_state[0].dims) == [2, 0, 4]
    assert message.max_batch_size == 16
    complete_config(message, model_name=message.name, description=None)


def test_a_merged_decoder_uses_its_state_from_the_second_request_on() -> None:
    message = configured("-1, 2, -1, 4", "-1, -1", BRANCH)
    assert add_states(message, FILES)
    (state,) = message.sequence_batching.state
    assert list(state.initial_state[0].dims) == [1, 2, 0, 4]
    (control,) = message.sequence_batching.control_input
    assert control.name == "use_cache_branch"
    assert list(control.control[0].bool_false_true) == [True, False]
    assert [tensor.name for tensor in message.input] == ["input_ids"]
    assert message.max_batch_size == 0


@pytest.mark.parametrize(
    ("past", "output", "files"),
    [
        ("2, -1, 4", "present.0.key", ()),
        ("2, -1, 4", "other", FILES),
        ("-1, -1, 4", "present.0.key", FILES),
        ("2, 8, 4", "present.0.key", FILES),
        ("-1, 8", "present.0.key", FILES),
    ],
    ids=["no tokenizer", "no output", "unknown heads", "fixed", "another layout"],
)
def test_other_models_do_not_change(past: str, output: str, files: tuple[str, ...]) -> None:
    message = configured(past)
    message.max_batch_size = 4
    message.output[1].name = output
    before = model_config_pb2.ModelConfig()
    before.CopyFrom(message)
    assert not add_states(message, files)
    assert message == before
