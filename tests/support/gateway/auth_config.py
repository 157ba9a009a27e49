"""The file of --auth-config, in parts."""

from __future__ import annotations

import json

from nereid_gateway.guards.auth.api_key import digest_of

# What clients without credentials may do.
HEALTH_FOR_ALL = '[anonymous]\nrights = ["health"]\n'


def key_entry(name: str, key: str, *rights: str, more: str = "") -> str:
    """What permits a key these rights. more: further lines of its entry."""
    head = f'[[keys]]\nname = "{name}"\nsha256 = "{digest_of(key)}"\n'
    # What JSON makes of a list of texts is TOML as well.
    return f"{head}rights = {json.dumps(rights)}\n{more}\n"
