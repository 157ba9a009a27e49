"""Calls of models, with the rights that the scheduler of their instance knows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from nereid.core.errors import PermissionDenied, Unavailable
from nereid.core.methods import INFER_PATH
from nereid.core.wire.messages import InferRequest, InferResponse
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Handlers
from nereid_executor.core.mesh_client import Mesh
from nereid_executor.session.authorized_mesh import AuthorizedMesh
from tests.support.executor.linked_scheduler import DOMAIN, LinkedScheduler
from tests.support.rpc.local_channel import LocalChannel
from tests.support.waiting import until


class Site:
    """A session's client, its queries, and the scheduler that has the called models."""

    def __init__(self) -> None:
        self.called = LinkedScheduler()
        self.channel = LocalChannel(Handlers(stream={INFER_PATH: self.called.accept}))
        self.mesh = Mesh(self.channel, DOMAIN)
        self.queries: list[pb.CallQuery] = []
        self.calls = AuthorizedMesh(self.mesh, self.queries.append)
        self.responses: list[InferResponse] = []

    def infer(self, head: bytes, **fields: Any) -> Any:
        return self.calls.infer(InferRequest(0, head, [b"t"], **fields), self.responses.append)

    async def query(self, count: int) -> pb.CallQuery:
        await until(lambda: len(self.queries) == count)
        return self.queries[-1]

    async def sent(self, count: int) -> list[tuple[bytes, int, bytes]]:
        requests = await self.called.requests(count)
        return [(each.head, each.confined_caller, each.callable_models) for each in requests]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    made.mesh.close()
    await made.channel.close()


async def test_nothing_is_asked_before_the_scheduler_checks_rights(site: Site) -> None:
    site.infer(b"first", caller=7, confined_caller=7)
    assert await site.sent(1) == [(b"first", 7, b"")]
    assert not site.queries


async def test_calls_get_their_clients_rights_in_the_order_of_the_calls(site: Site) -> None:
    site.calls.enable()
    site.infer(b"confined", caller=7, confined_caller=7)
    site.infer(b"own", caller=8, callable_models=b"own")
    last = await site.query(2)
    assert last == pb.CallQuery(number=2, head=b"own", caller=8, callable_models=b"own")
    first = pb.CallQuery(number=1, head=b"confined", caller=7, confined_caller=7)
    assert site.queries[0] == first
    assert not site.called.requests_so_far()
    for number, rights in ((1, b"alice"), (2, b"bob"), (2, b"again"), (9, b"unknown")):
        site.calls.on_rights(pb.CallRights(number=number, callable_models=rights))
    assert await site.sent(2) == [(b"confined", 0, b"alice"), (b"own", 0, b"bob")]
    # A call for no request needs nobody's rights.
    site.infer(b"outside")
    assert (await site.sent(3))[-1] == (b"outside", 0, b"")
    assert len(site.queries) == 2


async def test_a_call_without_a_right_gets_the_error(site: Site) -> None:
    site.calls.enable()
    site.infer(b"head", confined_caller=7)
    await site.query(1)
    error = pb.ErrorStatus(code=PermissionDenied.code, message="no")
    site.calls.on_rights(pb.CallRights(number=1, error=error))
    (response,) = site.responses
    assert response.error is not None
    assert (response.error.code, response.error.message) == (PermissionDenied.code, "no")
    assert not response.more


@pytest.mark.parametrize("has_right", [True, False])
async def test_a_cancelled_call_is_not_sent(site: Site, has_right: bool) -> None:
    site.calls.enable()
    cancelled = site.infer(b"cancelled", caller=7)
    await site.query(1)
    cancelled.send_control("cancel")
    paused = site.infer(b"paused", caller=7)
    paused.send_control("pause")
    await site.query(2)
    error = None if has_right else pb.ErrorStatus(code=PermissionDenied.code)
    site.calls.on_rights(pb.CallRights(number=1, callable_models=b"any", error=error))
    site.calls.on_rights(pb.CallRights(number=2, callable_models=b"any"))
    assert [head for head, _, _ in await site.sent(1)] == [b"paused"]
    assert not site.responses


async def test_after_the_session_no_confined_model_calls(site: Site) -> None:
    """One that was asked for, and a later one; others go on without rights to pass on."""
    site.calls.enable()
    site.infer(b"asked", caller=7, confined_caller=7)
    site.infer(b"free", caller=8)
    await site.query(2)
    site.calls.close()
    site.infer(b"later", caller=7, confined_caller=7)
    site.infer(b"free too", caller=8)
    assert await site.sent(2) == [(b"free", 0, b""), (b"free too", 0, b"")]
    assert [each.error and each.error.code for each in site.responses] == [Unavailable.code] * 2
    assert len(site.queries) == 2


class Client:
    """A Mesh that keeps what it is asked for."""

    memory = 1, 2.0

    def __init__(self) -> None:
        self.asked: list[object] = []

    def release_segment(self, segment_name: str) -> None:
        self.asked.append(segment_name)

    def call_scheduler(self, method: str, *_: object) -> None:
        self.asked.append(method)


def test_everything_else_is_passed_on() -> None:
    client: Any = Client()
    calls = AuthorizedMesh(client, lambda _: None)
    calls.release_segment("s")
    calls.call_scheduler("ModelReady", b"", lambda _: None)
    assert (calls.memory, client.asked) == ((1, 2.0), ["s", "ModelReady"])
