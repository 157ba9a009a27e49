"""Permissions of a console's viewer, for display only. The page's requests are still checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_gateway.core.access.api_groups import APIS

if TYPE_CHECKING:
    from nereid.facts import document
    from nereid_gateway.core.access.grant import Grant
    from nereid_gateway.core.access.principal import Principal
    from nereid_gateway.guards.policy.call_policy import CallPolicy
    from nereid_gateway.server.call import HttpCall


def permissions(
    principal: Principal | None, policy: CallPolicy, call: HttpCall
) -> document.Permissions:
    """Return the permissions of a call's sender. principal: None without authentication."""
    apis = list(APIS)
    rights = for_all = [api for api in apis if _is_open(api, policy, call)]
    if principal is not None:
        grant = principal.grant
        rights = [api for api in rights if grant.permits(api)]
        for_all = [api for api in rights if not grant.depends_on_model(api)]
    may_load = "model-repository" in rights and _is_open(
        "model-repository", policy, call, changes=True
    )
    return {
        "principal": "" if principal is None else principal.name,
        "rights": rights,
        "for_all_models": for_all,
        "may_load": may_load,
        "may_infer": "inference" in rights,
        "may_drain": may_load and "model-repository" in for_all,
    }


def _is_open(api: str, policy: CallPolicy, call: HttpCall, *, changes: bool = False) -> bool:
    rule = policy.rule_of(api, changes=changes)
    return rule is None or rule.is_met(call.headers.get)


def limiting(principal: Principal | None) -> Grant | None:
    """Return the principal's grant if it permits an API only for some models, otherwise None."""
    if principal is None:
        return None
    grant = principal.grant
    depends = any(grant.depends_on_model(api) for api in APIS if grant.permits(api))
    return grant if depends else None
