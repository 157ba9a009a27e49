"""The table of the fields for queues and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nereid.model_config.batching_fields import (
    FORMS,
    PARAMETERS,
    DynamicBatching,
    QueuePolicy,
    SequenceBatching,
    runs_at_most_once,
)
from nereid.model_config.config_field import message_rows, parameters_of
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

# Control inputs and states are tensors, which the validation reads in the message.
_ELSEWHERE = {"control_input", "state"}
_INSIDE = {"direct", "oldest"}


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (QueuePolicy, model_config_pb2.ModelQueuePolicy()),
        (DynamicBatching, model_config_pb2.ModelDynamicBatching()),
        (SequenceBatching, model_config_pb2.ModelSequenceBatching()),
    ],
)
def test_each_field_of_a_message_has_a_row(form: type[Any], message: Message) -> None:
    rows = [row for _, row in message_rows(form, message)]
    fields = set(message.DESCRIPTOR.fields_by_name) - _ELSEWHERE - _INSIDE
    assert {row.name for row in rows if "." not in row.name} - _INSIDE == fields
    for row in rows:
        row.read_from(message)


def test_the_fields_of_both_strategies_have_rows() -> None:
    batching = model_config_pb2.ModelSequenceBatching()
    rows = {row.name for _, row in message_rows(SequenceBatching, batching)}
    rows |= {f"oldest.{row.name}" for _, row in message_rows(DynamicBatching, batching.oldest)}
    for strategy in _INSIDE:
        fields = getattr(batching, strategy).DESCRIPTOR.fields_by_name
        assert {f"{strategy}.{name}" for name in fields} <= rows


def test_the_parameters() -> None:
    assert [*PARAMETERS] == [row.name for form in FORMS for row in parameters_of(form)]
    known = {"at_most_once", "admission_target_ms", "target_p99_us", "sequence_snapshot_interval"}
    known.add("max_batch_tokens")
    assert known <= {*PARAMETERS}


def test_a_parameter_of_a_draft_is_read_without_the_others() -> None:
    draft = model_config_pb2.ModelConfig()
    draft.parameters["target_p99_us"].string_value = "never"
    assert not runs_at_most_once(draft)
    draft.parameters["at_most_once"].string_value = "on"
    assert runs_at_most_once(draft)
