"""The mesh under test, and the vectors that its models have."""

from __future__ import annotations

import json
import os
from typing import Any

# Ends in /v1.
URL = os.environ["NEREID_TEXTS_URL"]
KEY = os.environ["NEREID_TEXTS_KEY"]
EMBEDDER = os.environ["NEREID_TEXTS_EMBEDDER"]
RANKER = os.environ["NEREID_TEXTS_RANKER"]
# A model that says again what it is told.
CHAT = os.environ["NEREID_TEXTS_CHAT"]
# Vectors of bare onnxruntime, by text.
EXPECTED: dict[str, list[float]] = json.loads(os.environ["NEREID_TEXTS_EXPECTED"])
# Scores of bare onnxruntime for QUERY, by text.
QUERY = os.environ["NEREID_TEXTS_QUERY"]
SCORES: dict[str, float] = json.loads(os.environ["NEREID_TEXTS_SCORES"])
TEXTS = list(EXPECTED)


def check_vectors(vectors: Any, texts: list[str] | None = None) -> None:
    """Compare vectors with those of bare onnxruntime."""
    texts = TEXTS if texts is None else texts
    assert len(vectors) == len(texts)
    for vector, text in zip(vectors, texts, strict=True):
        expected = EXPECTED[text]
        assert len(vector) == len(expected)
        assert max(abs(a - b) for a, b in zip(vector, expected, strict=True)) < 1e-5
