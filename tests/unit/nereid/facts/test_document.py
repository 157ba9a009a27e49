"""The console's document, by its sample."""

from __future__ import annotations

from typing import Any

import pytest

from nereid.facts.document import Document
from tests.support.console import typed_documents
from tests.support.console.facts_server import sample


def test_the_sample_is_one() -> None:
    typed_documents.check(sample(), Document)


def test_what_is_none_is_noticed() -> None:
    changes: tuple[dict[str, Any], ...]
    changes = {"more": 1}, {"server": {}}, {"slow_requests": [{"model": 1}]}
    for change in changes:
        with pytest.raises(AssertionError):
            typed_documents.check({**sample(), **change}, Document)
