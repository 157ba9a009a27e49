"""The flags of TLS between services, and what follows from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nereid.config.mesh_tls import MeshTlsSettings
from tests.support.peers.certificates import Authority

TCP = "10.0.0.1:8003"
UNIX = "unix:/run/s"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> MeshTlsSettings:
    """All flags, with files that exist."""
    ours = Authority(tmp_path_factory.mktemp("tls"))
    identity = ours.identity()
    return MeshTlsSettings(
        mesh_tls_cert=identity.cert,
        mesh_tls_key=identity.key,
        mesh_tls_root=ours.root,
        mesh_tls_server_name="mesh.test",
    )


def test_nothing_given_is_clear_text() -> None:
    settings = MeshTlsSettings()
    assert settings.mesh_tls_errors([TCP]) == []
    assert settings.mesh_tls_client(TCP) is None
    assert settings.mesh_tls_server(TCP) is None


def test_all_given_is_mutual_over_tcp_alone(given: MeshTlsSettings) -> None:
    assert given.mesh_tls_errors([TCP, UNIX]) == []
    client, server = given.mesh_tls_client(TCP), given.mesh_tls_server(TCP)
    assert client is not None
    assert client.server_name == "mesh.test"
    assert server is not None
    assert server.mutual
    assert given.mesh_tls_client(UNIX) is None
    assert given.mesh_tls_server(UNIX) is None


def test_without_a_root_clients_need_no_certificate(given: MeshTlsSettings) -> None:
    server = replace(given, mesh_tls_root="").mesh_tls_server(TCP)
    assert server is not None
    assert not server.mutual


@pytest.mark.parametrize(
    ("without", "listening", "expected"),
    [
        (["key"], [], "only of use together"),
        (["cert"], [], "only of use together"),
        (["cert", "key"], [TCP], "required to listen with TLS"),
        (["cert", "key"], [UNIX], ""),
        (["cert", "key"], [], ""),
        (["cert", "key", "root"], [TCP], "of no use without --mesh-tls-root"),
    ],
)
def test_missing_flags_are_reported(
    given: MeshTlsSettings, without: list[str], listening: list[str], expected: str
) -> None:
    settings = replace(given, **{f"mesh_tls_{name}": "" for name in without})
    errors = settings.mesh_tls_errors(listening)
    assert len(errors) == bool(expected)
    assert expected in "".join(errors)


def test_unreadable_files_are_reported(given: MeshTlsSettings, tmp_path: Path) -> None:
    (error,) = replace(given, mesh_tls_root=str(tmp_path / "none")).mesh_tls_errors()
    assert "cannot be used: [Errno 2]" in error
