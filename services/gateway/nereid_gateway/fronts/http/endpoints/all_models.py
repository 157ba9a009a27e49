"""Check that a client may use a resource that concerns the models of all clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import PermissionDenied
from nereid_gateway.core.access.principal import principal_of

if TYPE_CHECKING:
    from nereid_gateway.core.routes import Route
    from nereid_gateway.server.call import HttpCall


def check_all_models(call: HttpCall, route: Route) -> None:
    """Raise PermissionDenied if the principal may use the route's API only with some models."""
    principal = principal_of(call.sender)
    api = route.endpoint.api
    if principal is not None and principal.grant.depends_on_model(api):
        raise PermissionDenied(f"'{principal.name}' needs the API '{api}' for all models")
