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
