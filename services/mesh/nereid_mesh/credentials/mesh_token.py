"""The command `nereid mesh-token`, which makes a mesh's token or derives a role's token."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from nereid.config.flags import Topic, choice, flag
from nereid.config.inherited_secrets import read_environ
from nereid.config.settings_reader import read_settings, settings_parser
from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.settings import MeshAccessSettings
from nereid.mesh_auth.token_file import token_lines
from nereid.mesh_auth.tokens import new_token

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

SUMMARY: Final = "make the secret that the services of a mesh share"
_PROGRAM = "nereid mesh-token"


@dataclass(frozen=True, kw_only=True)
class MeshTokenSettings(MeshAccessSettings):
    """Print a new mesh token or, with --role, one role's tokens, derived from the mesh's own."""

    TOPIC: ClassVar = Topic.MESH

    role: str | None = flag(
        None,
        f"the role to make a token for: {', '.join(role.value for role in Role)}",
        choice(*(role.value for role in Role)),
    )
    output: str | None = flag(None, "a file for the token, readable by its user alone")

    def errors(self) -> list[str]:
        """Return the errors in these settings, one line each."""
        errors = self.mesh_errors()
        if self.role is not None and not errors and self.read_mesh_token() is None:
            errors.append("--role needs the mesh's token: --mesh-token-file or NEREID_MESH_TOKEN")
        return errors


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags, for shell completion."""
    return settings_parser((MeshTokenSettings,), _PROGRAM)


def main(argv: Sequence[str]) -> int:
    """Print the token, or write it to --output, and return the exit code."""
    settings = read_settings(MeshTokenSettings, argv, read_environ(), _PROGRAM)
    made = [new_token()]
    if settings.role is not None:
        role = Role(settings.role)
        made = [token.role_token(role) for token in settings.read_mesh_tokens()]
    text = token_lines(made)
    if settings.output is None:
        sys.stdout.write(text)
        return 0
    try:
        descriptor = os.open(settings.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, 0o600)
            file.write(text)
    except OSError as error:
        sys.stderr.write(f"--output: '{settings.output}': {error.strerror}\n")
        return 1
    return 0
