"""Makes the secrets of docker-compose.yml's mesh, once: what exists is left as it is.

Runs in the scheduler's image, whose mesh token the roles' derive from. Each folder is a volume that
only those mount who need it, so its files may be read by any user of their containers. To replace
a secret, remove its file, and with the mesh's token the roles', then start everything anew.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.tokens import MeshToken, new_token

ROOT = Path("/run/nereid")
# Volume by the role that its service has.
ROLES = {"gateway": Role.GATEWAY, "executor": Role.EXECUTOR, "cache": Role.SCHEDULER}


def main() -> None:
    """Write all secrets that are not there yet."""
    mesh = MeshToken(ensure(ROOT / "mesh" / "token", new_token()))
    for folder, role in ROLES.items():
        ensure(ROOT / folder / "token", mesh.role_token(role))
    password = ensure(ROOT / "redis" / "password", secrets.token_urlsafe(32))
    ensure(ROOT / "redis" / "redis.conf", f"requirepass {password}")
    ensure(ROOT / "grafana" / "password", secrets.token_urlsafe(24))


def ensure(path: Path, text: str) -> str:
    """Return the file's text, which is written if there is no file."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        # Whole or not at all: a container that is killed here starts anew.
        unfinished = path.with_suffix(".new")
        unfinished.write_text(f"{text}\n")
        unfinished.chmod(0o444)
        unfinished.rename(path)
        return text


if __name__ == "__main__":
    main()
