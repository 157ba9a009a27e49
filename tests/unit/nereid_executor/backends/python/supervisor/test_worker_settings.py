"""The backend's settings for Python models, and a model's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format

from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.pb import model_config_pb2
from nereid_executor.backends.python.supervisor.worker_settings import read_worker_settings


def config(**parameters: str) -> model_config_pb2.ModelConfig:
    text = "".join(
        f'parameters {{ key: "{key.replace("_", "-")}" value {{ string_value: "{value}" }} }} '
        for key, value in parameters.items()
    )
    return text_format.Parse(f'name: "m" {text}', model_config_pb2.ModelConfig())


def test_settings_have_defaults() -> None:
    settings = read_worker_settings(config(), Path("/m"), {})
    assert (settings.start_s, settings.initialize_s, settings.execute_s) == (30, None, None)


def test_the_models_own_settings_come_first() -> None:
    backend = {"stub-timeout-seconds": "5", "execute-timeout-seconds": "7"}
    settings = read_worker_settings(config(execute_timeout_seconds="0.5"), Path("/m"), backend)
    assert (settings.start_s, settings.initialize_s, settings.execute_s) == (5, None, 0.5)


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf", ""])
def test_times_that_are_none(value: str) -> None:
    with pytest.raises(InvalidArgument, match="expected a number of seconds"):
        read_worker_settings(config(initialize_timeout_seconds=value), Path("/m"), {})


@pytest.mark.parametrize("value", ["maybe", "NO", ""])
def test_where_inputs_shall_be_is_yes_or_no(value: str) -> None:
    text = (
        f'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "{value}" }} }}'
    )
    wrong = text_format.Parse(f'name: "m" {text}', model_config_pb2.ModelConfig())
    with pytest.raises(Unimplemented) as refused:
        read_worker_settings(wrong, Path("/m"), {})
    assert str(refused.value) == f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {value}'"
    for fine in ("yes", "no"):
        right = text_format.Parse(text.replace(f'"{value}"', f'"{fine}"'), type(wrong)())
        read_worker_settings(right, Path("/m"), {})
