"""Bodies of calls: what is decoded, and how the rest is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.errors import InvalidArgument
from nereid_gateway.extras.openai import bodies
from nereid_gateway.extras.openai.endpoints.classification import ModerationBody, PredictBody
from nereid_gateway.extras.openai.endpoints.embeddings import EmbeddingsBody
from nereid_gateway.extras.openai.endpoints.ranking import RerankBody, ScoreBody, SimilarityBody
from nereid_gateway.extras.openai.endpoints.tokens import DecodeBody, DetokenizeBody, TokenizeBody
from nereid_gateway.extras.openai.errors import InvalidParameter

TYPES = (
    EmbeddingsBody,
    RerankBody,
    ScoreBody,
    SimilarityBody,
    PredictBody,
    ModerationBody,
    TokenizeBody,
    DecodeBody,
)


@pytest.mark.parametrize(
    ("content", "parameter", "message"),
    [
        (b'{"model": "m", "input": "a", "x y": 1}', "x y", "Unknown parameter: 'x y'."),
        (b'{"model": 1, "input": "a"}', "model", "Invalid value for 'model': Expected `str"),
        (b'{"model": "m", "input": [1.5]}', "input[0]", "Invalid value for 'input[0]'"),
        (b'{"model": "m", "input": "a", "encoding_format": "x"}', "encoding_format", "Invalid"),
    ],
)
def test_errors_name_the_parameter(content: bytes, parameter: str, message: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        bodies.decode(content, EmbeddingsBody)
    assert refused.value.parameter == parameter
    assert refused.value.message.startswith(message)


@given(
    content=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
        lambda child: (
            st.lists(child, max_size=4)
            | st.dictionaries(
                st.sampled_from(["model", "input", "inputs", "query", "documents", "texts", "ids"]),
                child,
            )
        ),
    )
)
def test_any_document_is_decoded_or_refused(content: Any) -> None:
    encoded = msgspec.json.encode(content)
    for body_type in TYPES:
        try:
            bodies.decode(encoded, body_type)
        except InvalidArgument as error:
            assert error.message  # noqa: PT017


@given(content=st.binary(max_size=40))
def test_any_bytes_are_decoded_or_refused(content: bytes) -> None:
    for body_type in TYPES:
        with pytest.raises(InvalidArgument):
            bodies.decode(content, body_type)


def test_all_forms_of_inputs_are_lists_of_texts_or_tokens() -> None:
    assert bodies.texts_of("a") == ["a"]
    assert bodies.texts_of(["a", "b"]) == ["a", "b"]
    assert bodies.texts_of([1, 2]) == [[1, 2]]
    assert bodies.texts_of([[1], [2, 3]]) == [[1], [2, 3]]
    wrong: list[Any]
    for wrong in ([], ["a", 1], [[1], "a"], [[]], ["a", "b", "c"]):
        with pytest.raises(InvalidParameter):
            bodies.texts_of(wrong, max_texts=2)


@pytest.mark.parametrize("items", [b"[]," * (1 << 20) + b"[]", b"[%b]" % (b"7," * 300_000 + b"7")])
def test_lists_of_too_many_elements_are_refused(items: bytes) -> None:
    with pytest.raises(InvalidParameter, match="more than 300000") as refused:
        bodies.decode(b'{"model":"m","input":[%b]}' % items, EmbeddingsBody)
    assert refused.value.parameter == "input"


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(InvalidParameter) as refused:
        bodies.decode(b'{"model": "m"}', DetokenizeBody)
    assert refused.value.parameter == "tokens"
    assert refused.value.message == "Missing required parameter: 'tokens'."
