"""The name of a version's model file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from google.protobuf import text_format

from nereid.backends.model_file import find_model_file
from nereid.core.errors import InvalidArgument, NotFound
from nereid.pb import model_config_pb2


@pytest.mark.parametrize(
    ("text", "capability", "found"),
    [
        ("", "", "model.x"),
        ("", "8.6", "model.x"),
        ('default_model_filename: "a.x"', "", "a.x"),
        ('cc_model_filenames { key: "8.6" value: "b.x" }', "8.6", "b.x"),
        ('cc_model_filenames { key: "8.6" value: "b.x" }', "9.0", "model.x"),
        ('cc_model_filenames { key: "8.6" value: "b.x" }', "", "model.x"),
    ],
)
def test_the_configuration_names_the_file(
    tmp_path: Path, text: str, capability: str, found: str
) -> None:
    config = text_format.Parse(f'name: "m" {text}', model_config_pb2.ModelConfig())
    with pytest.raises(NotFound) as caught:
        find_model_file(config, tmp_path, "model.x", capability)
    assert caught.value.message == (
        f"failed to load 'm': unable to find '{tmp_path / found}' for model 'm'"
    )
    (tmp_path / found).touch()
    assert find_model_file(config, tmp_path, "model.x", capability) == tmp_path / found


@pytest.mark.parametrize("name", ["model.x", "model.x_data", "folder/weights"])
def test_pipes_and_devices_are_refused_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    if name != "model.x":
        (tmp_path / "model.x").touch()
    os.mkfifo(tmp_path / name)
    config = model_config_pb2.ModelConfig(name="m")
    with pytest.raises(InvalidArgument, match=f"'{tmp_path / name}' is a pipe or a device"):
        find_model_file(config, tmp_path, "model.x")
