"""Files of text models: which of two counts, and the bound on their sum."""

from __future__ import annotations

import pytest

from nereid.text.files import MAX_BYTES
from nereid_scheduler.core.models.text_files import NO_TEXT_FILES, TextFiles, find_text_files


def test_a_versions_own_file_comes_before_that_of_the_model() -> None:
    there = {"tokenizer.json", "1/tokenizer.json", "1/text.json", "config.json", "other.json"}
    assert find_text_files("1", there.__contains__) == {
        "text.json": "1/text.json",
        "tokenizer.json": "1/tokenizer.json",
        "config.json": "config.json",
    }


def test_the_sum_of_all_files_is_bounded() -> None:
    limits = []

    def read(name: str, limit: int) -> bytes:
        limits.append(limit)
        return name.encode()

    files = TextFiles({"a": "", "bcd": ""}, read)
    assert files.read() == {"a": b"a", "bcd": b"bcd"}
    assert limits == [MAX_BYTES, MAX_BYTES - 1]


def test_most_models_have_none() -> None:
    assert NO_TEXT_FILES.read() == {}
    with pytest.raises(FileNotFoundError):
        NO_TEXT_FILES.read_file("tokenizer.json", 1)
