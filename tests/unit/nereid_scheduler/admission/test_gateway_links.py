"""Who is greeted with what, and when."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from nereid.core.errors import PermissionDenied
from nereid.core.methods import ACCESS_CONTROL_KEY, MODEL_CALLS_KEY, SHM_NAMESPACE_KEY
from nereid.core.wire.codecs import ResponseCodec
from nereid.core.wire.messages import CachedModels, InferRequest, LogRules, Notice, Ownership
from nereid.pb import kserve_pb2
from nereid.rpc import memory_links
from nereid_scheduler.admission.admission import Admission
from nereid_scheduler.admission.call_rights import CallRights
from nereid_scheduler.admission.gateway_links import GatewayLinks
from nereid_scheduler.core.requests.load_queue import LoadQueue
from nereid_scheduler.core.requests.segment_owners import SegmentOwners
from nereid_scheduler.placement.models.catalogue import Catalogue
from tests.support.scheduler.world import turn

LEAVING = Ownership("", 0, (), leaving=True)


class FakeCall:
    """A gateway's call; `sent` has the items of each frame."""

    def __init__(
        self,
        *,
        domain: str | None = None,
        local: bool = True,
        for_models: bool = False,
        has_access_control: bool = False,
    ) -> None:
        self.peer_is_local = local
        self._metadata = {
            SHM_NAMESPACE_KEY: domain,
            MODEL_CALLS_KEY: "1" if for_models else None,
            ACCESS_CONTROL_KEY: "1" if has_access_control else None,
        }
        self.done = self.accepted = self.finished = False
        self.buffered_bytes = 0
        self.sent: list[list[Any]] = []
        self.on_message: Any = None
        self.on_half_close: Any = None
        self.on_cancel: Any = None
        self.on_writable: Any = None

    def get(self, key: str) -> str | None:
        return self._metadata[key]

    def accept(self) -> None:
        self.accepted = True

    def send(self, frame: bytes) -> None:
        self.sent.append(ResponseCodec().decode(frame))

    def finish(self) -> None:
        self.finished = True


def links_of(*, started: bool = True) -> GatewayLinks:
    def notices(shares: bool) -> Iterator[Notice]:
        yield CachedModels((), "host" if shares else "")

    links = GatewayLinks(Admission(Catalogue(), LoadQueue(1.0, 1)), SegmentOwners("host"), notices)
    if started:
        links.start()
    return links


def accept(links: GatewayLinks, **options: Any) -> Any:
    call = FakeCall(**options)
    links.accept_call(call)  # type: ignore[arg-type]
    return call


@pytest.mark.parametrize("for_models", [True, False])
async def test_links_of_models_are_no_gateways(for_models: bool) -> None:
    links = links_of()
    accept(links, for_models=for_models)
    assert [each.for_models for each in links.sessions] == [for_models]


@pytest.mark.parametrize("is_near", [True, False])
@pytest.mark.parametrize("has_access_control", [True, False])
async def test_gateways_say_whether_they_check_rights(
    is_near: bool, has_access_control: bool
) -> None:
    rights = CallRights({})
    admission = Admission(Catalogue(), LoadQueue(1.0, 1), call_rights=rights)
    links = GatewayLinks(admission, SegmentOwners("host"), lambda _: [])
    links.start()
    if is_near:
        links.attach(memory_links()[1], has_access_control=has_access_control)
    else:
        accept(links, has_access_control=has_access_control)
    # It stays so: a model must not wait until the gateway is away for a moment.
    for session in [*links.sessions]:
        session.on_down()
    head = kserve_pb2.ModelInferRequest(model_name="m").SerializeToString()
    with pytest.raises(PermissionDenied) if has_access_control else contextlib.nullcontext():
        rights.apply(InferRequest(1, head, [], confined_caller=1))


async def test_who_connects_early_is_accepted_at_the_start() -> None:
    links = links_of(started=False)
    call, cut_off = accept(links), accept(links)
    assert len(links) == 2
    cut_off.done = True
    assert len(links) == 1
    assert not call.accepted
    links.start()
    assert (call.accepted, cut_off.accepted) == (True, False)
    assert accept(links).accepted
    assert len(links) == len(links.sessions) == 2


@pytest.mark.parametrize(
    ("options", "domain"),
    [
        ({"domain": "host"}, "host"),
        ({"domain": "other"}, ""),
        ({"domain": None}, ""),
        ({"domain": "host", "local": False}, ""),
    ],
)
async def test_a_gateway_is_greeted_as_one_that_shares_memory_or_not(
    options: dict[str, Any], domain: str
) -> None:
    links = links_of()
    call = accept(links, **options)
    await turn()
    assert call.sent == [[CachedModels((), domain)]]


async def test_a_gateway_in_this_process_is_served() -> None:
    links = links_of()
    near, far = memory_links()
    items: list[Any] = []
    near.on_items = items.extend
    links.attach(far)
    await turn()
    assert items == [CachedModels((), "host")]
    assert len(links) == 1
    near.close()
    await turn()
    assert len(links) == 0


async def test_notices_go_to_all() -> None:
    links = links_of()
    one, other = accept(links, domain="host"), accept(links)
    await turn()
    rules = LogRules(0, True, True, True, "default")
    links.send_notice(rules)
    links.send_to_each(lambda shares: CachedModels((str(shares),)))
    await turn()
    assert [call.sent.pop() for call in (one, other)] == [
        [CachedModels(("True",)), rules],
        [CachedModels(("False",)), rules],
    ]
    links.greet_again()
    await turn()
    assert one.sent.pop() == [CachedModels((), "host")]


async def test_all_gateways_learn_that_the_scheduler_leaves() -> None:
    links = links_of()
    call = accept(links)
    await turn()
    links.announce_leaving()
    # Before anything else that happens in this turn.
    assert call.sent[-1] == [LEAVING]
    newcomer = accept(links)
    await turn()
    assert newcomer.sent == [[CachedModels(()), LEAVING]]


async def test_a_gateway_that_is_cut_off_is_forgotten() -> None:
    links = links_of()
    call = accept(links)
    call.on_cancel()
    assert len(links) == 0


async def test_links_end_after_what_was_sent_or_at_the_limit() -> None:
    links = links_of()
    await links.close(5)
    ready, stuck = accept(links), accept(links)
    stuck.buffered_bytes = 1
    await links.close(0.01)
    assert ready.sent == [[CachedModels(())]]
    assert (ready.finished, stuck.finished) == (True, True)
