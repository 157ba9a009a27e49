"""The patch of two documents makes one of the other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid_gateway.extras.console.merge_patch import merge_patch
from tests.support.console.patches import patched

_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(0, 2) | st.floats(0, 1) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
_DOCUMENTS = st.dictionaries(st.sampled_from("abcd"), _VALUES)


@given(_DOCUMENTS, _DOCUMENTS)
def test_it_makes_the_new_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert patched(old, merge_patch(old, new)) == new


@given(_DOCUMENTS)
def test_nothing_for_nothing(document: dict[str, Any]) -> None:
    assert merge_patch(document, dict(document)) == {}


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 3}}),
        ({"a": 1}, {}, {"a": None}),
        ({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}),
        ({"a": {"b": 1}}, {"a": 1}, {"a": 1}),
        ({"a": 1}, {"a": True}, {"a": True}),
    ],
)
def test_only_what_has_changed(old: Any, new: Any, patch: Any) -> None:
    assert merge_patch(old, new) == patch
