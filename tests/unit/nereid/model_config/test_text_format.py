"""parse_config: the text format, and errors in it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.errors import InvalidArgument
from nereid.model_config import parse_config


def reason(text: str) -> str:
    with pytest.raises(InvalidArgument) as caught:
        parse_config(text, model_name="m")
    return caught.value.message


def test_a_text_becomes_the_message_as_written() -> None:
    config = parse_config(
        '# comment\nname: "m" input [ { name: "x" dims: [ 1, -1 ] }, { name: "y" } ]',
        model_name="m",
    )
    assert config.name == "m"
    assert [list(tensor.dims) for tensor in config.input] == [[1, -1], []]
    assert not config.HasField("version_policy")


def test_an_empty_text_is_an_empty_configuration() -> None:
    assert not parse_config("", model_name="m").ListFields()


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_config('\ufeffname: "m"', model_name="m").name == "m"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "\n  max_batchsize: 1",
            (
                '2:3: Message type "inference.ModelConfig" has no field named "max_batchsize".'
                " Did you mean 'max_batch_size'?"
            ),
        ),
        (
            "zzz: 1",
            '1:1: Message type "inference.ModelConfig" has no field named "zzz".',
        ),
        (
            "dynamic_batching { default_queue_policy { max_queue_len: 1 } }",
            (
                '1:43: Message type "inference.ModelQueuePolicy" has no field named '
                '"max_queue_len".'
                " Did you mean 'max_queue_size'?"
            ),
        ),
        (
            "input { data_type: TYPE_FLOAT32 }",
            (
                '1:20: Enum type "inference.DataType" has no value named TYPE_FLOAT32.'
                " Did you mean 'TYPE_FP32'?"
            ),
        ),
        (
            "instance_group { kind: GPU }",
            (
                '1:24: Enum type "inference.ModelInstanceGroup.Kind" has no value named GPU.'
                " Did you mean 'KIND_GPU'?"
            ),
        ),
        ("max_batch_size: 99999999999", "1:17: Value out of range: 99999999999"),
        ("max_batch_size: 1.5", "1:17: Couldn't parse integer: 1.5"),
        (
            'name: "a" name: "b"',
            '1:17: Message type "inference.ModelConfig" should not have multiple "name" fields.',
        ),
    ],
)
def test_an_error_has_position_reason_and_suggestion(text: str, expected: str) -> None:
    assert reason(text) == f"failed to read text proto for model 'm': {expected}"


@pytest.mark.parametrize(
    "text", ['name: "\\xff"', 'name: "\\ud800"', 'name: "\\777"', "input [", "[a.b/c.d] {}", "\0"]
)
def test_what_protobuf_cannot_read_is_an_invalid_argument(text: str) -> None:
    assert reason(text).startswith("failed to read text proto for model 'm': 1:")


_WORDS = st.sampled_from(
    [
        "name",
        "input",
        "dims",
        "parameters",
        "value",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        ";",
        "<",
        ">",
        '"x"',
        "'",
        "1",
        "-1",
        "1e400",
        "true",
        "TYPE_FP32",
        "#",
        "\n",
        "\\",
        "0x",
        "inf",
        "�",
    ]
)


@given(st.one_of(st.text(), st.lists(_WORDS).map(" ".join)))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    # Any other error fails the test.
    with suppress(InvalidArgument):
        assert parse_config(text, model_name="m").IsInitialized()
