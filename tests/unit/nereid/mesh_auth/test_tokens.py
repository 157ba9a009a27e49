"""A mesh's token and the tokens of roles that are derived from it."""

from __future__ import annotations

import pytest

from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.tokens import MeshToken, new_token

SECRET = "correct horse battery staple"


def test_a_roles_token_has_the_key_of_its_role_and_no_other() -> None:
    master = MeshToken(SECRET)
    token = MeshToken(master.role_token(Role.EXECUTOR))
    assert token.only is Role.EXECUTOR
    assert token.key(Role.EXECUTOR) == master.key(Role.EXECUTOR)
    assert [token.key(role) for role in Role if role is not Role.EXECUTOR] == [None] * 4
    with pytest.raises(ValueError, match="only the mesh's own"):
        token.role_token(Role.GATEWAY)


def test_each_role_has_a_key_of_its_own_which_does_not_show_the_token() -> None:
    master = MeshToken(SECRET)
    assert len({master.key(role) for role in Role}) == len(Role)
    assert all(SECRET not in master.role_token(role) for role in Role)


def test_secrets_of_the_mesh_are_for_one_purpose_and_for_no_role() -> None:
    master = MeshToken(SECRET)
    assert master.secret("one") == MeshToken(SECRET).secret("one")
    assert master.secret("one") not in {master.secret("two"), *map(master.key, Role)}
    assert MeshToken(master.role_token(Role.SCHEDULER)).secret("one") == b""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("short", "at least 16 characters"),
        ("nereid-role-executor-abc", "was it cut"),
        ("nereid-role-nobody-" + "A" * 43, "was it cut"),
        ("nereid-role-executor-" + "!" * 43, "was it cut"),
    ],
)
def test_what_is_no_token_is_refused_and_not_shown(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error) as raised:
        MeshToken(text)
    assert text not in str(raised.value)


def test_new_tokens_differ_and_are_long_enough() -> None:
    first, second = new_token(), new_token()
    assert first != second
    assert MeshToken(first).only is None
