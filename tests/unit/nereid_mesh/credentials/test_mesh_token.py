"""`nereid mesh-token`."""

from __future__ import annotations

from pathlib import Path

import pytest

from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.tokens import MeshToken
from nereid_mesh.credentials import mesh_token


def test_a_new_token_and_a_roles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mesh_token.main([]) == 0
    master = capsys.readouterr().out
    file = tmp_path / "token"
    file.write_text(master)
    assert mesh_token.main([f"--mesh-token-file={file}", "--role=executor"]) == 0
    made = capsys.readouterr().out.strip()
    assert made == MeshToken(master.strip()).role_token(Role.EXECUTOR)


def test_a_roles_token_needs_the_meshs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        mesh_token.main(["--role=executor"])
    assert "needs the mesh's token" in capsys.readouterr().err


def test_a_file_is_its_users_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text("what was there before, and is longer than a token" * 2)
    file.chmod(0o644)
    assert mesh_token.main([f"--output={file}"]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    MeshToken(file.read_text().strip())
    assert file.read_text().count("\n") == 1
    assert mesh_token.main([f"--output={tmp_path}"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"--output: '{tmp_path}': Is a directory\n"
