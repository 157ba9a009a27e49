"""The tokenizer model beside the library that the encoder was trained with."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from nereid_executor.backends.python import worker_site

SITE = Path(worker_site.__file__).parent
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (*"ab1,.-$字", "ab", "##a", "##b", "##ab", "##ba", "cafe", "##1")
VOCABULARY = {token: number for number, token in enumerate((*SPECIAL, *PIECES))}
# Letters with accents, spaces of all sorts, controls, symbols, Chinese, things beyond the BMP.
ODD = "aAbBéÉàßÅİ1²½, .-$^`_|~§«»、。字漢😀𠀀\0\a\t\n\r"
ODD += "\u3000\u00a0\u200b\u0301\u00ad\ufeff\ufffd\u2028"


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        # What a model imports is there in its own process alone.
        patch.syspath_prepend(str(SITE))
        yield importlib.import_module("examples.zoo.python.tokenizer")


@given(
    text=st.one_of(
        # Not all of Unicode: of what is new in it the two know differently much.
        st.text(st.characters(codec="latin-1")),
        st.text(ODD),
        st.lists(st.sampled_from([*SPECIAL, *PIECES, " ", "ababab", "Café"])).map("".join),
        st.text("ab", min_size=95, max_size=105),
    )
)
def test_tokens_are_those_of_the_library(tokenizer: Any, text: str) -> None:
    library = BertWordPieceTokenizer(VOCABULARY)
    library.enable_truncation(tokenizer.MAX_TOKENS)
    known = tokenizer.WordPiece(VOCABULARY)
    assert known.encode(text) == library.encode(text).ids


def test_what_is_too_long_is_cut(tokenizer: Any) -> None:
    ids = tokenizer.WordPiece(VOCABULARY).encode("a " * 500)
    assert len(ids) == tokenizer.MAX_TOKENS
    assert (ids[0], ids[-1]) == (VOCABULARY["[CLS]"], VOCABULARY["[SEP]"])


def test_a_vocabulary_is_read_by_lines(tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n字\n##é\n", encoding="utf-8")
    assert tokenizer.read_vocabulary(path) == {"[PAD]": 0, "字": 1, "##é": 2}
