"""The console's document, by its sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nereid.facts.document import Document
from tests.support.console import typed_documents

SAMPLE = Path(typed_documents.__file__).with_name("sample.json")


def test_the_sample_is_one() -> None:
    typed_documents.check(json.loads(SAMPLE.read_text()), Document)


def test_what_is_none_is_noticed() -> None:
    changes: tuple[dict[str, Any], ...]
    changes = {"more": 1}, {"server": {}}, {"slow_requests": [{"model": 1}]}
    for change in changes:
        with pytest.raises(AssertionError):
            typed_documents.check({**json.loads(SAMPLE.read_text()), **change}, Document)
