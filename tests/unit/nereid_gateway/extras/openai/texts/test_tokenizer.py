"""Tokens of texts: limits, and truncation as the library itself truncates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from nereid.core.errors import InvalidArgument
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.texts.tokenizer import TextTokenizer, TokenLimit, Tokens
from tests.support.models import text_models

OWN = TextTokenizer(text_models.tokenizer().to_str().encode())
WORDS = st.lists(st.sampled_from(text_models.WORDS), max_size=30).map(" ".join)
SIDES = st.sampled_from(["left", "right"])


def _library(limit: int, side: str) -> Tokenizer:
    made = text_models.tokenizer()
    made.enable_truncation(limit, direction=side)
    return made


@given(text=WORDS, limit=st.integers(3, 40), side=SIDES)
def test_texts_are_truncated_as_by_the_library(text: str, limit: int, side: str) -> None:
    (tokens,) = OWN.tokenize([text], TokenLimit(limit, truncates=True, side=side))
    assert tokens.ids == _library(limit, side).encode(text).ids


@given(first=WORDS, second=WORDS, limit=st.integers(5, 40), side=SIDES)
def test_pairs_are_truncated_as_by_the_library(
    first: str, second: str, limit: int, side: str
) -> None:
    (tokens,) = OWN.tokenize([(first, second)], TokenLimit(limit, truncates=True, side=side))
    encoding = _library(limit, side).encode(first, second)
    assert tokens == Tokens(encoding.ids, encoding.type_ids)


@given(text=WORDS, limit=st.integers(1, 40))
def test_a_shortened_text_has_the_first_tokens(text: str, limit: int) -> None:
    library = text_models.tokenizer()
    ids = library.encode(text, add_special_tokens=False).ids
    shortened = OWN.shorten(text, limit)
    assert text.startswith(shortened)
    assert library.encode(shortened, add_special_tokens=False).ids == ids[:limit]


def test_the_limits_in_a_file_do_not_count() -> None:
    library = _library(4, "right")
    library.enable_padding(length=20)
    (tokens,) = TextTokenizer(library.to_str().encode()).tokenize(["the cat sat"], TokenLimit(0))
    assert len(tokens.ids) == 5


def test_a_long_text_is_refused_by_its_place_in_the_call() -> None:
    with pytest.raises(InvalidParameter, match=r"item 8 of 'input' has 5 tokens, 1 too many"):
        OWN.tokenize(["the cat", "the cat sat"], TokenLimit(4), first=7)


def test_token_ids_of_other_tokenizers_are_refused() -> None:
    assert OWN.check_ids([2, 3], TokenLimit(2), 0) == Tokens([2, 3])
    assert OWN.check_ids([2, 5, 3], TokenLimit(2, truncates=True, side="left"), 0).ids == [5, 3]
    for ids in ([-1], [OWN.vocabulary_size], [1 << 70]):
        with pytest.raises(InvalidParameter, match="not in the model's vocabulary"):
            OWN.check_ids(ids, TokenLimit(0), 0)
    with pytest.raises(InvalidParameter, match="too many"):
        OWN.check_ids([2, 3, 4], TokenLimit(2), 0)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"version": "1.0", "model": {}}'])
def test_a_file_that_is_no_tokenizer_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidArgument, match="the tokenizer cannot be read"):
        TextTokenizer(content)


def test_a_text_of_a_megabyte_is_refused_before_it_is_tokenized() -> None:
    with pytest.raises(InvalidArgument, match="1048577 characters, more than 1048576"):
        OWN.tokenize([("short", "a" * ((1 << 20) + 1))], TokenLimit(8, truncates=True))
