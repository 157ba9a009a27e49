"""The file of --auth-config, in parts."""

from __future__ import annotations

import json

from nereid_gateway.guards.auth.api_key import digest_of

# Rights of clients without credentials.
HEALTH_FOR_ALL = '[anonymous]\nrights = ["health"]\n'


def key_entry(name: str, key: str, *rights: str, more: str = "") -> str:
    """Return an entry that permits a key these rights. more: further lines of the entry."""
    head = f'[[keys]]\nname = "{name}"\nsha256 = "{digest_of(key)}"\n'
    # A list of texts is the same in JSON and TOML.
    return f"{head}rights = {json.dumps(rights)}\n{more}\n"
