"""Texts of the models that may be called for a request's clients."""

from __future__ import annotations

import pytest

from nereid.core.callable_models import join_callable_models, may_call, write_callable_models
from nereid.core.errors import Internal
from nereid.core.permitted_models import NamePatterns

A_AND_SHARED = write_callable_models(NamePatterns(("a_*", "shared")))
B_AND_SHARED = write_callable_models(NamePatterns(("b_*", "shared")))


@pytest.mark.parametrize(
    ("texts", "callable_names"),
    [
        ([], ["a_1", "b_1", "shared", "c"]),
        ([b"", b""], ["a_1", "b_1", "shared", "c"]),
        ([A_AND_SHARED], ["a_1", "shared"]),
        ([A_AND_SHARED, b"", A_AND_SHARED], ["a_1", "shared"]),
        ([A_AND_SHARED, B_AND_SHARED], ["shared"]),
        ([write_callable_models(NamePatterns(()))], []),
    ],
)
def test_every_client_must_permit_a_model(texts: list[bytes], callable_names: list[str]) -> None:
    joined = join_callable_models(texts)
    assert [name for name in ("a_1", "b_1", "shared", "c") if may_call(joined, name)] == (
        callable_names
    )


def test_texts_of_the_same_clients_are_equal() -> None:
    """They decide which requests share cached responses, and what a nested call may do."""
    joined = join_callable_models([A_AND_SHARED, B_AND_SHARED])
    assert joined == join_callable_models([B_AND_SHARED, A_AND_SHARED, B_AND_SHARED])
    assert joined == join_callable_models([joined, A_AND_SHARED])


@pytest.mark.parametrize("text", [b"\xff", b"{", b"7", b"[7]", b"[]", b"null", b"[" * 100_000])
def test_damaged_texts_permit_nothing(text: bytes) -> None:
    with pytest.raises(Internal, match="damaged"):
        may_call(text, "m")
