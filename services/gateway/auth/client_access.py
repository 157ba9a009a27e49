"""All of client authentication that a gateway has, in one object: only one with --auth-config
imports this.
"""

from __future__ import annotations

from time import monotonic

from nereid.services.gateway.auth.access import AccessControl
from nereid.services.gateway.auth.authenticator import CREDENTIAL_HEADERS, Authenticator
from nereid.services.gateway.auth.refusals import AccessRefusals
from nereid.services.gateway.auth.reload import ConfigWatch, LoadedConfig, load_config


class ClientAccess:
    """Who may call what, by a file that is read anew when it changes."""

    # Not forwarded to models.
    headers = CREDENTIAL_HEADERS

    def __init__(self, path: str) -> None:
        loaded = load_config(path)
        authenticator = Authenticator(*loaded)

        def apply(changed: LoadedConfig) -> None:
            authenticator.apply(*changed)

        self.control = AccessControl(authenticator, AccessRefusals(monotonic), monotonic)
        self.watch = ConfigWatch(path, loaded, apply)
