"""Tokens that are replaced while a service runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.token_file import TokenFile, read_tokens, token_lines
from nereid.mesh_auth.tokens import MeshToken

FORMER, NEW = "correct horse battery staple", "another horse and battery"


def write(path: Path, content: str) -> str:
    """Write a file as old as one whose writer is done."""
    path.write_text(content)
    done = time.time() - 60
    os.utime(path, (done, done))
    return str(path)


def keys(tokens: tuple[MeshToken, ...]) -> list[bytes | None]:
    return [token.key(Role.GATEWAY) for token in tokens]


def expected(*texts: str) -> list[bytes | None]:
    return keys(tuple(map(MeshToken, texts)))


def test_a_changed_file_counts_at_once_and_an_unusable_one_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = write(tmp_path / "token", token_lines([FORMER]))
    file = TokenFile(path, interval_s=0)
    first = file.tokens()
    assert keys(first) == expected(FORMER)
    assert file.tokens() is first
    write(tmp_path / "token", token_lines([NEW, FORMER]))
    assert keys(file.tokens()) == expected(NEW, FORMER)
    role = MeshToken(NEW).role_token(Role.GATEWAY)
    for unusable in ("", "short\n", f"{role}\n", f"{NEW}\naccept {role}\n"):
        write(tmp_path / "token", unusable)
        assert keys(file.tokens()) == expected(NEW, FORMER)
    (tmp_path / "token").unlink()
    assert keys(file.tokens()) == expected(NEW, FORMER)
    assert len(caplog.messages) == 6
    assert not any(text in str(caplog.messages) for text in (FORMER, NEW, role))


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    file = TokenFile(write(tmp_path / "token", token_lines([FORMER])), interval_s=0)
    (tmp_path / "token").write_text(NEW)
    assert keys(file.tokens()) == expected(FORMER)


def test_comments_are_no_tokens_and_few_are_accepted(tmp_path: Path) -> None:
    path = write(tmp_path / "token", f"{FORMER}\nthe token of our mesh in Berlin\n")
    assert keys(read_tokens(path)) == expected(FORMER)
    write(tmp_path / "token", token_lines([FORMER] * 5))
    with pytest.raises(ValueError, match="more than 4 tokens"):
        read_tokens(path)
