"""What a row makes of a field: a default, a frozen value, an error."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from nereid.config.flags import integer
from nereid.core.errors import InvalidArgument
from nereid.model_config.config_field import (
    MessageField,
    Parameter,
    Scope,
    check_message,
    complete_message,
    config_field,
    message_values,
    parameter_values,
    parameters_of,
)
from nereid.pb.model_config_pb2 import ModelConfig, ModelSequenceBatching


def _complete(scope: Scope) -> None:
    scope.message.max_queue_delay_microseconds = scope.config.max_batch_size


def _check(scope: Scope) -> None:
    if scope.message.max_queue_delay_microseconds > 9:
        raise InvalidArgument(f"too long for {scope.config.name}")


def _fits(config: ModelConfig, value: int) -> None:
    if value > config.max_batch_size:
        raise InvalidArgument("too many")


@dataclass(frozen=True)
class Form:
    """Two fields of messages, a parameter, and a field that nothing declares."""

    delay_us: int = config_field(
        MessageField("max_queue_delay_microseconds", 7, complete=_complete, check=_check)
    )
    utilization: float = config_field(MessageField("direct.minimum_slot_utilization", 0.5))
    rows: int = config_field(Parameter("most_rows", 3, integer(1), _fits))
    other: str = ""


def config(rows: str = "") -> ModelConfig:
    made = ModelConfig(name="m", max_batch_size=8)
    made.dynamic_batching.SetInParent()
    if rows:
        made.parameters["most_rows"].string_value = rows
    return made


def test_a_form_without_a_configuration_has_the_rows_defaults() -> None:
    assert Form() == Form(7, 0.5, 3, "")


def test_a_message_is_completed_checked_and_frozen_by_the_rows_of_its_own_fields() -> None:
    made = config()
    scope = Scope(made, made.dynamic_batching)
    complete_message(Form, scope)
    check_message(Form, scope)
    # The other row's field is in sequence_batching alone.
    assert message_values(Form, made.dynamic_batching) == {"delay_us": 8}
    made.dynamic_batching.max_queue_delay_microseconds = 10
    with pytest.raises(InvalidArgument, match="too long for m"):
        check_message(Form, scope)


def test_a_dotted_name_is_in_a_message_inside() -> None:
    batching = ModelSequenceBatching()
    batching.direct.minimum_slot_utilization = 0.25
    complete_message(Form, Scope(ModelConfig(), batching))
    check_message(Form, Scope(ModelConfig(), batching))
    assert message_values(Form, batching) == {"utilization": 0.25}


@pytest.mark.parametrize(("text", "value"), [("", 3), ("1", 1), ("8", 8)])
def test_a_parameter_is_parsed(text: str, value: int) -> None:
    assert [row.name for row in parameters_of(Form)] == ["most_rows"]
    assert parameter_values(Form, config(text)) == {"rows": value}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "x",
            "parameter 'most_rows' of model 'm': expected a whole number but got 'x'",
        ),
        ("9", "too many"),
    ],
)
def test_a_parameter_is_refused(text: str, error: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parameter_values(Form, config(text))
    assert refused.value.message == error
