"""Configurations and files in a load request."""

import gc

import pytest

from nereid.core.errors import InvalidArgument
from nereid.pb import kserve_pb2
from nereid.services.scheduler.repository.overrides import (
    Override,
    parse_override,
    read_override,
    write_files,
)

Parameter = kserve_pb2.ModelRepositoryParameter


@pytest.mark.parametrize(
    ("parameters", "override"),
    [
        ({}, None),
        ({"config": Parameter(string_param="{}")}, Override("{}")),
        ({"file:1/a": Parameter(bytes_param=b"x")}, Override("", {"1/a": b"x"})),
        (
            {"file:1/a": Parameter(bytes_param=b"x"), "config": Parameter(string_param="{}")},
            Override("{}", {"1/a": b"x"}),
        ),
    ],
)
def test_parameters_are_read(
    parameters: dict[str, kserve_pb2.ModelRepositoryParameter], override: Override | None
) -> None:
    assert read_override(parameters) == override


@pytest.mark.parametrize(
    ("name", "parameter", "text"),
    [
        ("foo", Parameter(string_param="x"), "unrecognized load parameter 'foo'."),
        (
            "config",
            Parameter(int64_param=1),
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            "file:1/a",
            Parameter(string_param="x"),
            "invalid value type for load parameter 'file:1/a', expected bytes_param.",
        ),
    ],
)
def test_invalid_parameters_are_refused(
    name: str, parameter: kserve_pb2.ModelRepositoryParameter, text: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_override({name: parameter})
    assert refused.value.message == text


def test_a_configuration_is_read_from_json() -> None:
    draft = parse_override('{"max_batch_size": 3, "instance_group": [{"kind": "KIND_CPU"}]}')
    assert (draft.max_batch_size, len(draft.instance_group)) == (3, 1)


@pytest.mark.parametrize("text", ["", "x", "[]", '{"nosuch": 1}', '{"max_batch_size": "x"}'])
def test_an_invalid_configuration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"Invalid config override|must be specified"):
        parse_override(text)


def test_files_are_in_a_directory_of_this_user_until_it_is_released() -> None:
    directory = write_files({"1/model.onnx": b"one", "labels.txt": b"cat"})
    path = directory.path
    assert (path / "1" / "model.onnx").read_bytes() == b"one"
    assert (path / "labels.txt").read_bytes() == b"cat"
    assert path.stat().st_mode & 0o077 == 0
    del directory
    gc.collect()
    assert not path.exists()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "1/../../x", "a\0b"])
def test_a_path_out_of_the_model_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="must stay within"):
        write_files({name: b"x"})
