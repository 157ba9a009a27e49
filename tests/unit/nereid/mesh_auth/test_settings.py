"""The flags of access between services: what must not be opened, and which tokens will do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.settings import MeshAccessSettings
from nereid.mesh_auth.tokens import MeshToken
from nereid.rpc.net.address import is_local
from nereid_cache.settings import CacheSettings
from nereid_executor.settings import ExecutorSettings
from nereid_gateway.settings import GatewaySettings
from nereid_scheduler.settings import Settings as SchedulerSettings
from tests.support.peers.certificates import Authority

TOKEN = "correct horse battery staple"


@pytest.mark.parametrize(
    "address", ["unix:/run/s", "127.0.0.1:8003", "127.1.2.3:0", "[::1]:8003", "localhost:8003"]
)
def test_addresses_of_this_machine_need_nothing(address: str) -> None:
    assert is_local(address)
    assert MeshAccessSettings().mesh_errors([address]) == []


@pytest.mark.parametrize("address", ["0.0.0.0:8003", "[::]:8003", "10.0.0.1:8003", "scheduler:0"])
def test_others_need_a_token_or_certificates(address: str, tmp_path: Path) -> None:
    (error,) = MeshAccessSettings().mesh_errors([address, "unix:/run/s"])
    assert error.startswith(f"{address} can be reached from other machines")
    assert "--mesh-token-file" in error
    assert "--mesh-tls-root" in error
    assert MeshAccessSettings(mesh_token=TOKEN).mesh_errors([address]) == []
    ours = Authority(tmp_path)
    identity = ours.identity()
    files: dict[str, Any] = {"mesh_tls_cert": identity.cert, "mesh_tls_key": identity.key}
    # A certificate of our own says who we are, not who connects.
    assert len(MeshAccessSettings(**files).mesh_errors([address])) == 1
    mutual = MeshAccessSettings(**files, mesh_tls_root=ours.root)
    assert mutual.mesh_errors([address]) == []


def test_the_default_addresses_are_this_machines(tmp_path: Path) -> None:
    assert CacheSettings().errors() == []
    assert SchedulerSettings(model_repository=(str(tmp_path),)).errors() == []


def test_a_token_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\nits comment\n")
    token = MeshAccessSettings(mesh_token_file=str(path)).read_mesh_token()
    assert token is not None
    assert token.key(Role.GATEWAY) == MeshToken(TOKEN).key(Role.GATEWAY)


@pytest.mark.parametrize(
    ("content", "error"),
    [(None, "No such file"), (b"\n", "first line is empty"), (b"\xff", "no text"), (b"x", "least")],
)
def test_a_file_that_has_none(tmp_path: Path, content: bytes | None, error: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    (found,) = MeshAccessSettings(mesh_token_file=str(path)).mesh_errors()
    assert found.startswith(f"--mesh-token-file: '{path}': ")
    assert error in found


def test_flag_and_file_exclude_each_other(tmp_path: Path) -> None:
    both = MeshAccessSettings(mesh_token=TOKEN, mesh_token_file=str(tmp_path))
    assert both.mesh_errors() == ["--mesh-token and --mesh-token-file exclude each other"]


@pytest.mark.parametrize(
    ("settings", "suffices"),
    [
        (GatewaySettings, {Role.GATEWAY}),
        (ExecutorSettings, {Role.EXECUTOR}),
        (CacheSettings, {Role.SCHEDULER}),
        (SchedulerSettings, set()),
    ],
)
def test_which_roles_token_each_service_takes(
    settings: type[MeshAccessSettings], suffices: set[Role], tmp_path: Path
) -> None:
    required: dict[str, Any] = (
        {"model_repository": (str(tmp_path),)} if settings is SchedulerSettings else {}
    )
    for role in Role:
        given = settings(mesh_token=MeshToken(TOKEN).role_token(role), **required)
        errors = given.mesh_errors()
        assert len(errors) == (role not in suffices)
        assert all(f"token of the role {role.value}" in error for error in errors)
