"""Makes the secrets of docker-compose.yml's mesh, once: what exists is left as it is.

Runs in the scheduler's image, whose mesh token the roles' derive from. Each folder is a volume that
only those mount who need it, so its files may be read by any user of their containers. To replace
the mesh's token while it serves: docker compose run --rm secrets --replace-mesh-token. To replace a
password, remove its file, run this, and restart who has it.
"""

from __future__ import annotations

import argparse
import secrets
import time
from pathlib import Path

from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.token_file import token_lines
from nereid.mesh_auth.tokens import MeshToken, new_token

# Services look at their files every second, and leave those alone that are younger than one.
SEEN_S = 4.0
ROOT = Path("/run/nereid")
# Volume by the role that its service has.
ROLES = {"gateway": Role.GATEWAY, "executor": Role.EXECUTOR, "cache": Role.SCHEDULER}


def main() -> None:
    """Write all secrets that are not there yet, or replace the mesh's token."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replace-mesh-token", action="store_true")
    if parser.parse_args().replace_mesh_token:
        replace_mesh_token()
        return
    mesh = MeshToken(ensure(ROOT / "mesh" / "token", new_token()))
    for folder, role in ROLES.items():
        ensure(ROOT / folder / "token", mesh.role_token(role))
    password = ensure(ROOT / "redis" / "password", secrets.token_urlsafe(32))
    ensure(ROOT / "redis" / "redis.conf", f"requirepass {password}")
    ensure(ROOT / "grafana" / "password", secrets.token_urlsafe(24))


def ensure(path: Path, text: str) -> str:
    """Return the file's first line, which is written if there is no file."""
    try:
        return path.read_text().partition("\n")[0].strip()
    except FileNotFoundError:
        write(path, f"{text}\n")
        return text


def write(path: Path, content: str) -> None:
    """Write a file, whole or not at all: a container that is killed here starts anew."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(content)
    unfinished.chmod(0o444)
    unfinished.rename(path)


def replace_mesh_token() -> None:
    """Replace the mesh's token and the roles': accepted by all, then used by all, then alone."""
    new = new_token()
    former = ensure(ROOT / "mesh" / "token", new)
    for texts in ([former, new], [new, former], [new]):
        write(ROOT / "mesh" / "token", token_lines(texts))
        for folder, role in ROLES.items():
            write(
                ROOT / folder / "token",
                token_lines(MeshToken(text).role_token(role) for text in texts),
            )
        time.sleep(SEEN_S)


if __name__ == "__main__":
    main()
