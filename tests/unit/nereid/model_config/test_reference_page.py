"""docs/model-authors/models.md names every field of a configuration."""

import re
from pathlib import Path

import pytest

from nereid.pb import model_config_pb2

PAGE = (Path(__file__).parents[4] / "docs" / "model-authors" / "models.md").read_text()


@pytest.mark.parametrize(
    "message",
    [
        model_config_pb2.ModelConfig,
        model_config_pb2.ModelInput,
        model_config_pb2.ModelOutput,
        model_config_pb2.ModelDynamicBatching,
        model_config_pb2.ModelQueuePolicy,
        model_config_pb2.ModelSequenceBatching,
        model_config_pb2.ModelEnsembling,
        model_config_pb2.ModelInstanceGroup,
    ],
)
def test_every_field_is_named(message: type) -> None:
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`|^## .*", PAGE, re.MULTILINE))))
    fields = {field.name for field in message.DESCRIPTOR.fields}  # type: ignore[attr-defined]
    assert fields - named == set()
