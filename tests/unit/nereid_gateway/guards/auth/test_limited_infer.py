"""Requests in flight are released once, whatever ends them."""

from __future__ import annotations

import pytest

from nereid.core.wire.messages import ErrorStatus, InferResponse
from nereid_gateway.core import request_head
from nereid_gateway.core.access.grant import NOTHING, Grant, Limits, Permission
from nereid_gateway.core.access.principal import Principal
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_head import HeadReader
from nereid_gateway.guards.auth.access import AccessControl, Caller
from nereid_gateway.guards.auth.authenticator import Authenticator
from nereid_gateway.guards.auth.config import AuthConfig
from nereid_gateway.guards.auth.limited_infer import LimitedInfer
from nereid_gateway.guards.auth.refusals import AccessRefusals
from tests.support.gateway.scripted_mesh import ScriptedMesh

TWO = Grant((Permission(frozenset({"inference"}), ("a*",)),), Limits(concurrency=2))


def request(model: str = "a") -> ClientRequest:
    return ClientRequest(0, request_head.naming(model, ""), [])


class Site:
    def __init__(self, *, checks_each_message: bool = True) -> None:
        self.mesh = ScriptedMesh()
        self.principal = Principal("web", TWO)
        access = AccessControl(
            Authenticator(AuthConfig()), AccessRefusals(lambda: 0.0), lambda: 0.0
        )
        self.limited = LimitedInfer(
            self.mesh.infer, Caller(self.principal, "x:1", access), HeadReader(),
            checks_each_message=checks_each_message,
        )  # fmt: skip
        self.delivered: list[InferResponse] = []

    @property
    def in_flight(self) -> int:
        return self.principal.usage.in_flight

    def refusal(self, model: str = "a") -> ErrorStatus:
        before = self.in_flight
        handle = self.limited.infer(request(model), self.delivered.append)
        handle.set_flow(paused=True)
        handle.cancel()
        assert self.in_flight == before
        error = self.delivered.pop().error
        assert error is not None
        return error


@pytest.mark.parametrize("last", [InferResponse(1), InferResponse(1, error=ErrorStatus(13, "x"))])
def test_released_by_the_last_response_alone(last: InferResponse) -> None:
    site = Site()
    handle = site.limited.infer(request(), site.delivered.append)
    site.mesh.on_response(InferResponse(1, more=True))
    assert site.in_flight == 1
    site.mesh.on_response(last)
    assert site.in_flight == 0
    handle.cancel()
    assert site.in_flight == 0
    assert len(site.delivered) == 2


def test_released_by_cancellation() -> None:
    site = Site()
    handle = site.limited.infer(request(), site.delivered.append)
    handle.set_flow(paused=True)
    handle.cancel()
    handle.cancel()
    site.mesh.on_response(InferResponse(1))
    assert site.in_flight == 0
    assert (site.mesh.flows, site.mesh.cancelled) == ([True], 2)


def test_requests_of_a_stream_are_refused_one_by_one() -> None:
    site = Site()
    for _ in range(2):
        site.limited.infer(request(), site.delivered.append)
    refused = site.refusal()
    assert (refused.code, refused.message) == (
        8,
        "'web' has 2 requests in flight, which is its limit",
    )
    site.mesh.on_response(InferResponse(1))
    assert site.refusal("b").code == 7
    site.principal.grant = NOTHING
    assert "no right to use the API 'inference'" in site.refusal().message


def test_a_calls_rate_and_rights_were_checked_when_it_was_opened() -> None:
    site = Site(checks_each_message=False)
    site.principal.grant = Grant(TWO.permissions, Limits(0.001, 1, 2))
    for _ in range(2):
        site.limited.infer(request(), site.delivered.append)
    assert site.in_flight == 2
    assert site.refusal("b").code == 7
    # What came while its message was decoded counts.
    assert site.refusal().code == 8
