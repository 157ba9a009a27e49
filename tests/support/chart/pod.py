"""Files of a pod of the chart, in a folder of the test's, and its command line."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Final

import trustme

from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.tokens import MeshToken
from tests.support.chart.value_sets import AUTH_CONFIG

TOKEN: Final = "a mesh token for tests alone"
# Role whose token a service gets; a service that is not named gets the mesh's own.
ROLES: Final = {"gateway": Role.GATEWAY, "executor": Role.EXECUTOR, "cache": Role.SCHEDULER}


class Pod:
    """The files that a pod of the chart has, under a folder of the test's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("mesh-own", "mesh", "tls", "server", "auth", "redis", "redis-tls"):
            (root / "run/nereid" / folder).mkdir(parents=True)
        for folder in ("models", "nfs/team a/models", "state"):
            (root / folder).mkdir(parents=True)
        own = root / "run/nereid"
        (own / "mesh-own/token").write_text(TOKEN)
        (own / "redis/password").write_text("secret")
        (own / "auth/auth.toml").write_text(AUTH_CONFIG)
        authority, certificate, key = _certificate()
        for folder in ("tls", "server", "redis-tls"):
            (own / folder / "ca.crt").write_bytes(authority)
            (own / folder / "tls.crt").write_bytes(certificate)
            (own / folder / "tls.key").write_bytes(key)

    def path_here(self, text: str) -> str:
        """Return a command line, with the pod's paths as they are here."""
        text = re.sub(r"(s3|gs|as)://.+", "/models", text)
        return re.sub(r"(?<![\w.:/])/(?=run/|models|nfs/|state/)", f"{self.root}/", text)

    def use_token_of(self, service: str) -> None:
        """The token that the service's init container, or a Secret, provides."""
        token = MeshToken(TOKEN)
        text = token.role_token(ROLES[service]) if service in ROLES else TOKEN
        (self.root / "run/nereid/mesh/token").write_text(text)


_AUTHORITY: Final = trustme.CA()


@functools.cache
def _certificate() -> tuple[bytes, bytes, bytes]:
    issued = _AUTHORITY.issue_cert("mesh.example")
    (chain,) = issued.cert_chain_pems
    return _AUTHORITY.cert_pem.bytes(), chain.bytes(), issued.private_key_pem.bytes()


def arguments(container: dict[str, Any], name: str = "demo-0") -> list[str]:
    """Return a container's arguments, with variables expanded as the kubelet does."""
    return [each.replace("$(POD_NAME)", name) for each in container["args"]]
