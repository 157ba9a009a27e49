"""All of client authentication that a gateway has, in one object: only one with --auth-config
imports this.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from nereid.services.gateway.auth.access import AccessControl
from nereid.services.gateway.auth.authenticator import CREDENTIAL_HEADERS, Authenticator
from nereid.services.gateway.auth.grpc_guard import AuthenticatedGrpc
from nereid.services.gateway.auth.http_guard import AuthenticatedHttp
from nereid.services.gateway.auth.refusals import AccessRefusals
from nereid.services.gateway.auth.reload import ConfigWatch, LoadedConfig, load_config

if TYPE_CHECKING:
    from nereid.services.gateway.data_plane import DataPlane
    from nereid.services.gateway.grpc.front import GrpcFront
    from nereid.services.gateway.http.server.body import AllocateBody
    from nereid.services.gateway.http.server.connection import Dispatch


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

    def guard_http(self, dispatch: Dispatch, allocate_body: AllocateBody) -> AuthenticatedHttp:
        """What stands in front of HTTP's front."""
        return AuthenticatedHttp(dispatch, allocate_body, self.control)

    def guard_grpc(self, front: GrpcFront, data_plane: DataPlane) -> AuthenticatedGrpc:
        """What stands in front of gRPC's front."""
        return AuthenticatedGrpc(front, data_plane, self.control)
