"""JSON of overrides beyond JSON, as the real server takes it (tests/conformance has both)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import given
from hypothesis import strategies as st

from nereid.pb import model_config_pb2
from nereid_scheduler.core.models.override_json import as_declared, parse_object

CONFIG = cast("Descriptor", model_config_pb2.ModelConfig.DESCRIPTOR)


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ('{"a": 1}', {"a": 1}),
        ("{a: 1, }", {"a": 1}),
        ("{ b_2  : [1, 2 ,\n] ,\t}", {"b_2": [1, 2]}),
        ("{'a': 'b'}", {"a": "b"}),
        ("""{'a"': "b'", c: '\\''}""", {'a"': "b'", "c": "'"}),
        (r"""{a: '\q\n\\\/\u0041', "b": "\'"}""", {"a": "q\n\\/A", "b": "'"}),
        ("{a: '\n\t'}", {"a": "\n\t"}),
        # What is in strings stays as it is.
        ("{a: 'b: [1,] 3. ,}'}", {"a": "b: [1,] 3. ,}"}),
        ("{\v\fa: 3., b: -0.5, c: 1e2}", {"a": 3.0, "b": -0.5, "c": 100.0}),
        ("{a: true, b: false, c: null}", {"a": True, "b": False, "c": None}),
        ("{}", {}),
        ("{a: {b: {c: [],},},}", {"a": {"b": {"c": []}}}),
    ],
)
def test_what_is_taken(text: str, document: object) -> None:
    assert parse_object(text) == document


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{,}", "line 1 column 2"),
        ("{a: 1,,}", "line 1 column 8"),
        ("{a: [,]}", "line 1 column 6"),
        ("{a: [1,,]}", "line 1 column 9"),
        ("{a:\n  b}", "line 2 column 3"),
        ("{'a': 1,\n'b: 2}", "line 2 column 1"),
        ("{'a\": 1}", "line 1 column 2"),
        ("{'\\n\\n\\q': 1 2}", "line 1 column 14"),
        ("{true: 1}", "line 1 column 2"),
        ("{trueish: 1}", "line 1 column 2"),
        ("{3x: 1}", "line 1 column 2"),
        ("{a-b: 1}", "line 1 column 2"),
        ("{$a: 1}", "line 1 column 2"),
        ("{\u00e9: 1}", "line 1 column 2"),
        ("{a: 1 // b\n}", "line 1 column 7"),
        ("{a: 1 /* b */}", "line 1 column 7"),
        ("{a: 03}", "line 1 column 6"),
        ("{a: +3}", "line 1 column 5"),
        ("{a 3}", "line 1 column 2"),
        ("{a: 1 b: 2}", "line 1 column 7"),
        ("{a: 1", "line 1 column 6"),
        ("{a: 1} x", "line 1 column 8"),
        ("{a: 'b\\", "line 1 column 5"),
    ],
)
def test_what_is_refused_and_where(text: str, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        parse_object(text)


@pytest.mark.parametrize("text", ["[]", "[1,]", "3", "'a'", "null"])
def test_an_object_is_needed(text: str) -> None:
    with pytest.raises(ValueError, match="must be a JSON object"):
        parse_object(text)


def test_depth_and_size_are_bounded() -> None:
    with pytest.raises(RecursionError):
        parse_object("{a:" + "[" * 100_000)
    with pytest.raises(ValueError, match="262144 characters"):
        parse_object("{a: '" + "x" * (1 << 18) + "'}")


@given(st.text(alphabet="{}[]:,'\"\\ax1. \n\v"))
def test_any_text_is_an_object_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert type(parse_object(text)) is dict


@pytest.mark.parametrize(
    ("document", "declared"),
    [
        ({"instance_group": {"count": 1}}, {"instance_group": [{"count": 1}]}),
        ({"instanceGroup": [None, {}]}, {"instanceGroup": [{}]}),
        ({"instance_group": None}, {"instance_group": None}),
        (
            {"input": {"dims": 3, "data_type": "type-fp32"}},
            {"input": [{"dims": [3], "data_type": "TYPE_FP32"}]},
        ),
        ({"input": {"data_type": "other"}}, {"input": [{"data_type": "other"}]}),
        ({"input": {"optional": "true"}}, {"input": [{"optional": True}]}),
        ({"input": {"optional": "x"}}, {"input": [{"optional": "x"}]}),
        ({"parameters": {"true": {"string_value": "true"}}},) * 2,
        ({"parameters": {"a": 1}},) * 2,
        ({"parameters": 1},) * 2,
        ({"nope": [None]},) * 2,
        ({"dynamic_batching": "x"},) * 2,
    ],
)
def test_values_become_those_of_their_fields(document: dict[str, Any], declared: object) -> None:
    assert as_declared(document, CONFIG) == declared
