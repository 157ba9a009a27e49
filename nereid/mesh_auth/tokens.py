"""The mesh's token, and the tokens of single roles that are derived from it.

Whoever has the mesh's token can make every role's, and check every role's credentials; whoever has
a role's token has that role alone. A token is never sent (see credentials).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from typing import Final

from nereid.mesh_auth.roles import Role

# Credentials can be overheard where there is no TLS: a token must be too long to be guessed.
_LEAST_LENGTH: Final = 16
_NEW_BYTES: Final = 32
_KEY_BYTES: Final = 32
_ROLE_PREFIX: Final = "nereid-role-"
_LABEL: Final = b"nereid mesh role v1 "
_SECRET_LABEL: Final = b"nereid mesh secret v1 "


class MeshToken:
    """A mesh's token, or a role's."""

    def __init__(self, text: str) -> None:
        """Raises ValueError, which does not show the text."""
        self._master = b""
        # Set: it is the token of this role alone.
        self.only: Role | None = None
        if text.startswith(_ROLE_PREFIX):
            self.only, self._only_key = _read_role_token(text)
        elif len(text) < _LEAST_LENGTH:
            raise ValueError(
                f"a mesh token has at least {_LEAST_LENGTH} characters; `nereid mesh-token` makes"
                " one"
            )
        else:
            self._master = text.encode()

    def key(self, role: Role) -> bytes | None:
        """The role's key; None: this is another role's token."""
        if self.only is not None:
            return self._only_key if role is self.only else None
        return hmac.digest(self._master, _LABEL + role.value.encode(), "sha256")

    def secret(self, purpose: str) -> bytes:
        """A secret of who has the mesh's own token, for one purpose; empty: this is a role's."""
        if self.only is not None:
            return b""
        return hmac.digest(self._master, _SECRET_LABEL + purpose.encode(), "sha256")

    def role_token(self, role: Role) -> str:
        """The token of one role. Raises ValueError if this is another role's."""
        key = self.key(role)
        if key is None:
            raise ValueError(f"a role's token makes no other: only the mesh's own makes {role}'s")
        text = base64.urlsafe_b64encode(key).rstrip(b"=").decode()
        return f"{_ROLE_PREFIX}{role.value}-{text}"


def new_token() -> str:
    """A token for a new mesh."""
    return secrets.token_urlsafe(_NEW_BYTES)


def _read_role_token(text: str) -> tuple[Role, bytes]:
    name, _, encoded = text.removeprefix(_ROLE_PREFIX).partition("-")
    try:
        role = Role(name)
        key = base64.b64decode(encoded + "=", altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != _KEY_BYTES:
        raise ValueError("it begins as a role's token but is not one; was it cut?")
    return role, key
