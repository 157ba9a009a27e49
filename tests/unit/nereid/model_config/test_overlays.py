"""Configurations of several files."""

import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nereid.core.errors import InvalidArgument
from nereid.core.variables import MARK, Variables
from nereid.model_config import parse_config
from nereid.model_config.overlays import ConfigFile, WrittenConfig, read_config_files
from nereid.pb.model_config_pb2 import ModelConfig
from tests.unit.nereid.model_config.test_any_config import configs

VARIABLES = Variables(("MODEL_*",), {"MODEL_A": "a"})
BASE = """# a comment
name: "m"
max_batch_size: 8
input [
  { name: "X" data_type: TYPE_FP32 dims: [ 4, 4 ] },
  { name: "Y" data_type: TYPE_INT32 dims: 1 }
]
output { name: "Z" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels" }
instance_group { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }
dynamic_batching {
  preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
}
parameters { key: "a" value { string_value: "1" } }
parameters { key: "b" value { string_value: "2" } }
"""
GROUP = "instance_group { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }"
SEQUENCE = "sequence_batching { }\n"


def read(overlay: str, base: str = BASE) -> WrittenConfig:
    files = [ConfigFile("config.pbtxt", base), ConfigFile("config.cpu.pbtxt", overlay, True)]
    return read_config_files(files, model_name="m", variables=VARIABLES)


@pytest.mark.parametrize(
    ("overlay", "before", "after"),
    [
        ("max_batch_size: 16", "max_batch_size: 8", "max_batch_size: 16"),
        # What is written counts, even if it is the default.
        ("max_batch_size: 0", "max_batch_size: 8", ""),
        # Messages are merged field by field.
        (
            "dynamic_batching { max_queue_delay_microseconds: 0 preserve_ordering: true }",
            "max_queue_delay_microseconds: 100",
            "preserve_ordering: true",
        ),
        # One of several fields that exclude each other replaces the other.
        ("sequence_batching { }", BASE[BASE.index("dynamic") : BASE.index("parameters")], SEQUENCE),
        # Lists replace lists, and may be empty.
        ("dynamic_batching { preferred_batch_size: 2 }", "[ 4, 8 ]", "[ 2 ]"),
        ("instance_group { kind: KIND_CPU }", GROUP, "instance_group { kind: KIND_CPU }"),
        ("instance_group []", GROUP, ""),
        # Tensors have names.
        ('input { name: "Y" optional: true }', "dims: 1", "dims: 1 optional: true"),
        ('output { name: "Z" dims: 3 }', "dims: [ 2 ]", "dims: [ 3 ]"),
        (
            'output { name: "N" dims: 3 }',
            "instance_group",
            'output { name: "N" dims: 3 } instance_group',
        ),
        # Maps have keys.
        (
            'parameters { key: "b" value { string_value: "3" } }',
            'string_value: "2"',
            'string_value: "3"',
        ),
        ('parameters { key: "b" }', 'value { string_value: "2" }', ""),
        (
            'parameters: [ < key: "\\x63" "d" value: < string_value: \'${MODEL_A}\' > > ];',
            'parameters { key: "a"',
            'parameters { key: "cd" value { string_value: "${MODEL_A}" } } parameters { key: "a"',
        ),
        ("# nothing", "# a comment", ""),
        (
            f"{MARK}\nname: '${{MODEL_B:-m}}' metric_tags {{ key: 'k' value: '${{MODEL_A}}' }}",
            'name: "m"',
            'name: "m" metric_tags { key: "k" value: "a" }',
        ),
    ],
)
def test_an_overlay_is_merged_over_the_file(overlay: str, before: str, after: str) -> None:
    assert BASE.count(before) == 1
    assert read(overlay).config == parse_config(BASE.replace(before, after), model_name="m")


def test_instance_groups_are_merged_by_name_if_the_overlay_names_them() -> None:
    base = 'instance_group [ { name: "a" count: 2 gpus: 0 }, { name: "b" }, { count: 9 } ]'
    written = read('instance_group [ { name: "b" count: 3 }, { name: "c" } ]', base)
    expected = (
        'instance_group [ { name: "a" count: 2 gpus: 0 }, { name: "b" count: 3 }, { count: 9 },'
        ' { name: "c" } ]'
    )
    assert written.config == parse_config(expected, model_name="m")


def test_a_duplicate_name_in_one_file_is_kept() -> None:
    written = read('input { name: "X" } input { name: "X" }')
    assert [tensor.name for tensor in written.config.input] == ["X", "Y", "X"]


def test_each_field_has_the_file_and_line_that_said_it() -> None:
    written = read(
        """max_batch_size: 16
input {
  name: "Y"
  optional: true
}
instance_group [
  { kind: KIND_CPU }
]
sequence_batching { }
parameters [
  { key: "c" value { string_value: "1" } },
  {
    key: "b" value { string_value: "1" }
  }
]
"""
    )
    assert written.sources == {
        "name": "config.pbtxt:2",
        "max_batch_size": "config.cpu.pbtxt:1",
        "input[X]": "config.pbtxt:5",
        "input[X].name": "config.pbtxt:5",
        "input[X].data_type": "config.pbtxt:5",
        "input[X].dims": "config.pbtxt:5",
        "input[Y]": "config.cpu.pbtxt:2",
        "input[Y].name": "config.cpu.pbtxt:3",
        "input[Y].data_type": "config.pbtxt:6",
        "input[Y].dims": "config.pbtxt:6",
        "input[Y].optional": "config.cpu.pbtxt:4",
        "output[Z]": "config.pbtxt:8",
        "output[Z].name": "config.pbtxt:8",
        "output[Z].data_type": "config.pbtxt:8",
        "output[Z].dims": "config.pbtxt:8",
        "output[Z].label_filename": "config.pbtxt:8",
        "instance_group": "config.cpu.pbtxt:7",
        "sequence_batching": "config.cpu.pbtxt:9",
        "parameters[a]": "config.pbtxt:13",
        "parameters[b]": "config.cpu.pbtxt:12",
        "parameters[c]": "config.cpu.pbtxt:11",
    }


def test_a_single_file_is_taken_as_it_is() -> None:
    files = [ConfigFile("config.pbtxt", BASE)]
    written = read_config_files(files, model_name="m", variables=VARIABLES)
    assert written == (parse_config(BASE, model_name="m"), {})
    assert read_config_files([], model_name="m", variables=VARIABLES) == (ModelConfig(), {})


@pytest.mark.parametrize(
    ("overlay", "error"),
    [
        ("\nmax_batch: 1", "config.cpu.pbtxt:2:1: Message type"),
        ("max_batch_size: ", "config.cpu.pbtxt:1:"),
        ("instance_group { kind: 99999999999 }", "config.cpu.pbtxt: "),
        (
            f"{MARK}\n\nname: '${{MODEL_X}}'",
            "config.cpu.pbtxt:3: the variable 'MODEL_X' is not set",
        ),
        (
            f"{MARK}\nmetric_tags {{ key: 'k'\n value: '${{HOME}}' }}",
            "config.cpu.pbtxt:3: --model-config-env does not allow the variable 'HOME'",
        ),
        (
            f"{MARK}\ncc_model_filenames [\n {{ key: 'k' value: '${{' }} ]",
            "config.cpu.pbtxt:3: expected ${NAME}",
        ),
    ],
)
def test_errors_name_file_and_line(overlay: str, error: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read(overlay)
    assert caught.value.message.startswith(f"failed to read text proto for model 'm': {error}")


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(config=configs(), one_line=st.booleans())
def test_a_file_over_nothing_or_over_itself_is_the_file(
    config: ModelConfig, *, one_line: bool
) -> None:
    text = text_format.MessageToString(config, as_one_line=one_line)
    parsed = parse_config(text, model_name="m")
    assert read(text, "").config == parsed
    names = [tensor.name for tensor in config.input] + [tensor.name for tensor in config.output]
    if len({*names}) == len(names) and "" not in names and not config.instance_group:
        assert read(text, text).config == parsed
