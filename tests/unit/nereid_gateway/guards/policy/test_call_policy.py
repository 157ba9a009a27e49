"""What the calls of each API need; tests/integration/gateway/test_policy.py has the ports."""

from __future__ import annotations

import pytest

from nereid_gateway.core.access.api_groups import CONTROL_APIS
from nereid_gateway.core.access.grant import Grant, Permission
from nereid_gateway.core.access.refusal import CallRefused, Reason
from nereid_gateway.guards.auth.access import AccessControl
from nereid_gateway.guards.auth.authenticator import Authenticator
from nereid_gateway.guards.auth.config import AuthConfig
from nereid_gateway.guards.auth.refusals import AccessRefusals
from nereid_gateway.guards.policy.call_policy import CallPolicy
from nereid_gateway.guards.policy.restricted_apis import Restriction

RESTRICTED = {"trace": Restriction("Key", "value")}


def refusal_of(
    policy: CallPolicy, api: str, headers: dict[str, str], *, changes: bool = False
) -> Reason | None:
    rule = policy.rule_of(api, changes=changes)
    try:
        policy.admit(api, rule, headers.get, "peer:1")
    except CallRefused as refused:
        return refused.refusal.reason
    return None


def test_a_policy_without_rules_guards_nothing() -> None:
    assert not CallPolicy({}, (), None)
    assert CallPolicy(RESTRICTED, (), None)
    assert CallPolicy({}, ("trace",), None)


@pytest.mark.parametrize(
    ("api", "headers", "reason"),
    [
        ("trace", {"key": "value"}, None),
        ("trace", {"key": "other"}, Reason.RESTRICTED),
        ("trace", {}, Reason.RESTRICTED),
        ("health", {}, None),
    ],
)
def test_a_restricted_api_requires_its_header(
    api: str, headers: dict[str, str], reason: Reason | None
) -> None:
    assert refusal_of(CallPolicy(RESTRICTED, (), None), api, headers) is reason


def test_grpc_has_a_prefix_and_http_looks_headers_up_as_bytes() -> None:
    grpc = CallPolicy(RESTRICTED, (), None).rule_of("trace", changes=True, is_grpc=True)
    http = CallPolicy(RESTRICTED, (), None, str.encode).rule_of("trace", changes=True)
    assert grpc is not None
    assert http is not None
    assert grpc[:2] == ("triton-grpc-protocol-key", "value")
    assert http[:2] == (b"key", b"value")


def test_of_a_closed_api_what_changes_nothing_is_open() -> None:
    policy = CallPolicy({}, CONTROL_APIS, None)
    assert refusal_of(policy, "model-repository", {}, changes=True) is Reason.CLOSED
    assert refusal_of(policy, "model-repository", {}) is None


def test_callers_are_found_by_their_credentials_once_the_header_is_right() -> None:
    rights = Grant((Permission(frozenset({"trace"})),))
    authenticator = Authenticator(AuthConfig(anonymous=rights))
    access = AccessControl(authenticator, AccessRefusals(lambda: 0.0), lambda: 0.0)
    policy = CallPolicy(RESTRICTED, (), access)
    rule = policy.rule_of("trace", changes=False)
    caller = policy.admit("trace", rule, {"key": "value"}.get, "peer:1")
    assert caller is not None
    assert caller.principal is authenticator.anonymous
    assert refusal_of(policy, "trace", {}) is Reason.RESTRICTED
    unknown = {"key": "value", "x-api-key": "unknown"}
    assert refusal_of(policy, "trace", unknown) is Reason.INVALID_CREDENTIALS
    assert refusal_of(policy, "health", {}) is Reason.NO_CREDENTIALS
    # Of what does not exist nobody asks whose it is.
    assert policy.admit(None, None, unknown.get, "peer:1") is None
