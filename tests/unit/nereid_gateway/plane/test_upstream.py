"""The gateway's limits on pending requests, and digests."""

from __future__ import annotations

import mmap

import pytest

from nereid.core.errors import STOPPING_MESSAGE
from nereid.core.sequence_owners import is_limited, is_principal
from nereid.core.tensors.digest import DIGEST_BYTES, KEY_BYTES
from nereid.core.traffic.caller_keys import key_of, source_tag
from nereid.core.wire.messages import (
    CachedModels,
    ErrorStatus,
    InferResponse,
    Payload,
    TrafficKeys,
)
from nereid.mesh_routing.access import OneScheduler
from nereid.pb import kserve_pb2
from nereid.rpc import Handlers
from nereid.rpc.net.limits.budget import Account, BudgetLimits, ByteBudget, Owner
from nereid_gateway.core.access.grant import ALL_APIS, NOTHING, Grant, Permission
from nereid_gateway.core.access.principal import Principal
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_handle import RequestHandle
from nereid_gateway.core.tensors.tensor_memory import TensorMemory
from nereid_gateway.plane.upstream import Limits, Upstream
from tests.support.mesh.fake_link import FakeLink
from tests.support.rpc.local_channel import LocalChannel


class UpstreamOnFakeLink:
    """An Upstream, and the responses that it delivered."""

    def __init__(
        self,
        *,
        max_pending: int = 10,
        max_bytes: int = 1 << 30,
        client_bytes: int | None = None,
        limits_addresses: bool = False,
        has_access_control: bool = False,
    ) -> None:
        self.link = FakeLink()
        self.responses: list[InferResponse] = []
        bounds = BudgetLimits(
            total_bytes=max_bytes,
            client_bytes=client_bytes or max_bytes,
            connection_bytes=max_bytes,
        )
        self.budget = ByteBudget(bounds, lambda: self.client.pending_bytes)
        limits = Limits(max_pending, 60.0)
        mesh = OneScheduler(self.link.open, LocalChannel(Handlers()))
        self.upstream = Upstream(
            mesh,
            limits,
            TensorMemory(0),
            self.budget,
            limits_addresses=limits_addresses,
            has_access_control=has_access_control,
        )
        self.client = self.upstream.pending
        self.upstream.start()
        self.link.on_items([CachedModels(())])

    def infer(self, *payloads: bytes) -> ClientRequest:
        request = ClientRequest(0, b"", list(payloads))
        self.upstream.infer(request, self.responses.append)
        return request

    def close(self) -> None:
        self.upstream.close()


@pytest.mark.parametrize("size_bytes", [1, 1 << 20])
async def test_what_comes_after_the_end_is_refused_as_on_triton(size_bytes: int) -> None:
    it = UpstreamOnFakeLink(max_bytes=1 << 40)
    it.infer(b"pending")
    it.close()
    it.infer(bytes(size_bytes))
    assert [each.error.message for each in it.responses if each.error] == [STOPPING_MESSAGE] * 2


async def test_requests_too_large_for_a_frame_are_refused() -> None:
    it = UpstreamOnFakeLink(max_bytes=1 << 40)
    # These pages are never touched.
    huge = memoryview(mmap.mmap(-1, 3 << 30))
    account = it.budget.open_account("a")
    request = sent_by(account, [huge[: 1 << 30], huge[1 << 30 :]])
    it.upstream.infer(request, it.responses.append)
    assert it.responses[0].error == ErrorStatus(
        3,
        "3221225472 bytes of tensors are more than a request may have that is not in shared memory",
    )
    it.upstream.infer(ClientRequest(0, b"", [huge[: 1 << 30]]), it.responses.append)
    assert len(it.link.sent_ids()) == 1
    assert len(it.client.requests) == 1
    # What was refused is not charged: with it, this would be too much.
    account.charge_pending(1 << 40)
    it.close()


async def test_the_number_of_pending_requests_is_bounded() -> None:
    it = UpstreamOnFakeLink(max_pending=1)
    first = it.infer()
    it.infer()
    assert it.responses[0].error == ErrorStatus(
        14, "Exceeds maximum queue size: 1 requests are pending", retry_after_ms=1000
    )
    it.link.on_items([InferResponse(first.id)])
    assert it.infer().id in it.link.sent_ids()
    it.close()


async def test_a_digest_goes_along_where_the_scheduler_asked_for_it() -> None:
    it = UpstreamOnFakeLink()
    head = kserve_pb2.ModelInferRequest(model_name="cached").SerializeToString()
    requests = [ClientRequest(0, head, []) for _ in range(3)]
    it.upstream.infer(requests[0], it.responses.append)
    it.link.on_items([CachedModels(("cached",), "", b"k" * KEY_BYTES)])
    it.upstream.infer(requests[1], it.responses.append)
    it.link.on_items([CachedModels(())])
    it.upstream.infer(requests[2], it.responses.append)
    assert [len(request.digest) for request in requests] == [0, DIGEST_BYTES, 0]
    assert it.responses == []


async def test_pending_bytes_are_bounded() -> None:
    it = UpstreamOnFakeLink(max_bytes=100)
    # A request larger than the limit is accepted while no other is pending.
    large = it.infer(bytes(1000))
    it.infer(b"")
    assert [response.error and response.error.code for response in it.responses] == [14]
    assert "1000 bytes are pending" in str(it.responses.pop().error)
    it.link.on_items([InferResponse(large.id)])
    first, second = it.infer(bytes(40), bytes(20)), it.infer(bytes(40))
    assert len(it.responses) == 1
    it.infer(bytes(1))
    assert [response.error and response.error.code for response in it.responses] == [None, 14]
    # Responses, cancellations and failures reduce the pending bytes.
    it.client.cancel(first.id)
    it.link.on_items([InferResponse(second.id)])
    assert len(it.responses) == 3
    third = it.infer(bytes(100))
    assert it.link.sent_ids()[-1] == third.id
    it.close()
    assert it.client.pending_bytes == 0


async def test_bytes_that_are_arriving_share_the_limit_but_leave_a_quarter_of_it() -> None:
    it = UpstreamOnFakeLink(max_bytes=100)
    arriving = it.budget.open_account("10.0.0.1")
    arriving.charge(60)
    it.infer(bytes(40))
    it.infer(b"x")
    assert [response.error and response.error.code for response in it.responses] == [14]
    # One request alone may have more, but the last quarter is not for it.
    arriving.release(60)
    it.responses.clear()
    it.close()
    it = UpstreamOnFakeLink(max_bytes=100)
    it.budget.open_account("10.0.0.1").charge(100)
    it.infer(bytes(20))
    it.infer(bytes(5))
    assert it.responses == []
    it.infer(b"x")
    assert len(it.responses) == 1
    it.close()


def sent_by(
    sender: Account | Owner | None, payloads: list[Payload] | None = None, head: bytes = b""
) -> ClientRequest:
    request = ClientRequest(0, head, [] if payloads is None else payloads)
    request.sender = sender
    return request


def large(it: UpstreamOnFakeLink, account: Account, size: int, head: bytes = b"") -> RequestHandle:
    request = sent_by(account, [bytes(size)], head)
    return it.upstream.infer(request, it.responses.append)


def strings(count: int) -> bytes:
    message = kserve_pb2.ModelInferRequest()
    message.inputs.add(name="x", datatype="BYTES", shape=[1, count])
    return message.SerializeToString()


async def test_large_requests_are_charged_to_their_client_until_the_last_response() -> None:
    it = UpstreamOnFakeLink(max_bytes=400_000, client_bytes=200_000)
    account = it.budget.open_account("a")
    large(it, account, 100_000)
    second = large(it, account, 100_000)
    large(it, account, 100_000)
    error = it.responses[-1].error
    assert error is not None
    assert "200000 are held for this client, and at most 200000" in error.message
    assert error.retry_after_ms
    first_id, _ = it.link.sent_ids()
    it.link.on_items([InferResponse(first_id, more=True)])
    large(it, it.budget.open_account("a"), 100_000)
    assert it.responses[-1].error is not None
    second.cancel()
    it.link.on_items([InferResponse(first_id)])
    it.link.sent_ids()
    for _ in range(2):
        large(it, account, 100_000)
    assert len(it.link.sent_ids()) == 2
    it.close()


@pytest.mark.parametrize("hostile", [1, 5, 20])
@pytest.mark.parametrize("size", [60_060, 100_000])
async def test_no_number_of_clients_keeps_out_the_requests_of_another(
    hostile: int, size: int
) -> None:
    it = UpstreamOnFakeLink(max_pending=10_000, max_bytes=40_000_000, client_bytes=20_000_000)
    for number in range(hostile):
        account = it.budget.open_account(f"hostile {number}")
        refused = len(it.responses)
        while len(it.responses) == refused:
            large(it, account, size)
    refused = len(it.responses)
    large(it, it.budget.open_account("honest"), 5_000)
    assert len(it.responses) == refused
    assert it.client.pending_bytes < 40_000_000
    it.close()
    # Whatever was charged is released.
    for number in range(hostile):
        it.budget.open_account(f"hostile {number}").charge_pending(20_000_000)


async def test_string_elements_cost_more_than_their_bytes() -> None:
    it = UpstreamOnFakeLink(max_bytes=40_000_000)
    account = it.budget.open_account("a")
    large(it, account, 400_000, strings(100_000))
    assert it.client.pending_bytes == 400_000 + 192 * 100_000
    large(it, account, 1_000_000, strings(250_000))
    assert it.responses[-1].error == ErrorStatus(
        3,
        "250000 string elements take about 48000000 bytes while a model executes, more than the"
        " 40000000 of one request. Use --max-connection-bytes to increase the limit.",
    )
    it.close()


async def test_clients_that_leave_too_much_unread_get_nothing_begun() -> None:
    it = UpstreamOnFakeLink(max_bytes=400, client_bytes=200)
    account, other = it.budget.open_account("a"), it.budget.open_account("b")
    account.set_unread(201)
    for sender in (account, Owner("somebody", account)):
        it.upstream.infer(sent_by(sender), it.responses.append)
        error = it.responses[-1].error
        assert error is not None
        assert "201 are held for this client" in error.message
    for allowed in (other, None):
        it.upstream.infer(sent_by(allowed), it.responses.append)
    assert len(it.link.sent_ids()) == 2
    account.set_unread(200)
    it.upstream.infer(sent_by(account), it.responses.append)
    assert len(it.link.sent_ids()) == 1
    it.close()


class TestSequenceOwners:
    """By address, where clients have no credentials: only whose turn it is."""

    @pytest.mark.parametrize("limited", [False, True])
    async def test_two_connections_of_one_address_are_one_client(self, limited: bool) -> None:
        it = UpstreamOnFakeLink(limits_addresses=limited)
        clients = [it.budget.open_account(client) for client in ("10.0.0.1", "10.0.0.1", "b")]
        owners = [self.owner(it, each) for each in clients]
        assert owners[0] == owners[1] != owners[2]
        assert [is_limited(owner) for owner in owners] == [limited] * 3
        assert not any(is_principal(owner) for owner in owners)
        it.close()

    async def test_a_principal_is_one_client_at_any_address(self) -> None:
        it = UpstreamOnFakeLink()
        alice, nobody = Principal("alice"), Principal("", identity=())
        accounts = [it.budget.open_account(client) for client in ("a", "b")]
        owners = [self.owner(it, Owner(alice, each)) for each in accounts]
        assert owners == [alice.sequence_owner] * 2
        # Who is nobody in particular is a client by its address, and no more limited than before.
        owners = [self.owner(it, Owner(nobody, each)) for each in accounts]
        assert owners[0] != owners[1]
        assert not any(is_limited(owner) for owner in owners)
        it.close()

    async def test_others_have_none(self) -> None:
        it = UpstreamOnFakeLink()
        assert self.owner(it, None) == ""
        request = sent_by(it.budget.open_account("a"))
        it.upstream.infer(request, it.responses.append)
        assert request.sequence_owner == ""
        it.close()

    async def test_a_latency_target_asks_for_the_client_of_each_request(self) -> None:
        it = UpstreamOnFakeLink()
        for clients in (True, False):
            it.link.on_items([TrafficKeys((), clients=clients)])
            request = sent_by(it.budget.open_account("a"))
            it.upstream.infer(request, it.responses.append)
            assert bool(request.sequence_owner) is clients
        it.close()

    @staticmethod
    def owner(it: UpstreamOnFakeLink, sender: Account | Owner | None) -> str:
        request = sent_by(sender)
        request.parameters = {"sequence_id": 7}
        it.upstream.infer(request, it.responses.append)
        return request.sequence_owner


def of_caller(model: str, user: str | None = "u", version: str = "") -> ClientRequest:
    head = kserve_pb2.ModelInferRequest(model_name=model, model_version=version)
    request = ClientRequest(0, head.SerializeToString(), [])
    request.headers = {} if user is None else {b"x-user": user.encode()}
    return request


async def test_requests_have_the_keys_that_schedulers_ask_for() -> None:
    it = UpstreamOnFakeLink()
    tag = source_tag("header:x-user")
    other = (("n", "principal"),)
    for keys, expected in (((), b""), ((("m", "header:x-user"), *other), tag + key_of(b"u"))):
        it.link.on_items([TrafficKeys(keys)])
        request = of_caller("m")
        it.upstream.infer(request, it.responses.append)
        assert request.caller_key == expected
    over_grpc = of_caller("m")
    over_grpc.headers = (("x-user", "other"), ("x-user", "u"))
    in_bytes = of_caller("m")
    in_bytes.headers = (("x-user", b"u"),)
    alice = of_caller("n")
    alice.sender = Owner(Principal("alice"), it.budget.open_account("a"))
    anonymous = of_caller("n")
    requests = {
        over_grpc: tag + key_of(b"u"),
        in_bytes: tag + key_of(b"u"),
        of_caller("m", None): tag,
        of_caller("m", version="1"): b"",
        of_caller("l"): b"",
        alice: source_tag("principal") + key_of(Principal("alice").sequence_owner.encode()),
        anonymous: source_tag("principal"),
    }
    for request in requests:
        it.upstream.infer(request, it.responses.append)
    assert [request.caller_key for request in requests] == [*requests.values()]
    it.close()


async def test_requests_that_wait_for_the_scheduler_get_their_keys_with_its_greeting() -> None:
    it = UpstreamOnFakeLink()
    it.link.on_down()
    request = of_caller("m")
    it.upstream.infer(request, it.responses.append)
    assert request.caller_key == b""
    it.link.on_items([TrafficKeys((("m", "header:x-user"),)), CachedModels(())])
    assert request.caller_key == source_tag("header:x-user") + key_of(b"u")
    assert it.link.sent[-1] is request
    it.close()


@pytest.mark.parametrize("has_access_control", [True, False])
async def test_requests_have_the_rights_of_their_clients(has_access_control: bool) -> None:
    it = UpstreamOnFakeLink(has_access_control=has_access_control)
    limited = Grant((Permission(frozenset({"inference"}), ("m*",)),))
    alice, root = Principal("alice", limited), Principal("root", Grant((Permission(ALL_APIS),)))
    # Also once schedulers have asked for keys, and no longer do.
    for keys in ((), (("n", "principal"),), ()):
        it.link.on_items([TrafficKeys(keys)])
        for principal, text in ((alice, b'[["m*"]]'), (root, b"")):
            request = sent_by(Owner(principal, it.budget.open_account("a")))
            it.upstream.infer(request, it.responses.append)
            assert request.callable_models == (text if has_access_control else b"")
    # They stay when the request is sent again, whatever its client may do then.
    (first,) = [each for each in it.link.sent if isinstance(each, ClientRequest)][:1]
    alice.grant = NOTHING
    it.link.on_down()
    it.link.on_items([CachedModels(())])
    again = [each for each in it.link.sent if isinstance(each, ClientRequest) and each.resent]
    assert first in again
    assert first.callable_models == (b'[["m*"]]' if has_access_control else b"")
    it.close()
