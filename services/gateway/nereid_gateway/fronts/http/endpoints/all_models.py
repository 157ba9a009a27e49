"""The right to what concerns the models of everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import PermissionDenied
from nereid_gateway.core.access.principal import principal_of
from nereid_gateway.core.routes import RULES

if TYPE_CHECKING:
    from nereid_gateway.core.routes import Route
    from nereid_gateway.server.call import HttpCall


def check_all_models(call: HttpCall, route: Route) -> None:
    """Refuse a principal whose right to the route's API is for some models only.

    Raises:
        PermissionDenied: it is.
    """
    principal = principal_of(call.sender)
    api = RULES[route.kind].api
    if principal is not None and principal.grant.depends_on_model(api):
        raise PermissionDenied(f"'{principal.name}' needs the API '{api}' for all models")
