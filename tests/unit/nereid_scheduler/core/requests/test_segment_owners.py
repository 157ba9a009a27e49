"""References that pass through the scheduler, and segments that return to their owners."""

import os

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import InferRequest, InferResponse, Release
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import SegmentPool
from nereid_scheduler.admission.admission import Admission
from nereid_scheduler.admission.gateway_session import GatewaySession
from nereid_scheduler.core.instances.remote_instance import batch_message
from nereid_scheduler.core.requests.entry import Batch
from nereid_scheduler.core.requests.load_queue import LoadQueue
from nereid_scheduler.core.requests.segment_owners import SegmentOwners
from nereid_scheduler.placement.models.catalogue import Catalogue
from tests.support.scheduler.samples import entry_of
from tests.support.scheduler.world import MIB, LendingExecutor, ResponseLink


class Gateway(ResponseLink):
    """A session, and its link."""

    def __init__(self, segment_owners: SegmentOwners, domain: str) -> None:
        super().__init__()
        admission = Admission(Catalogue(), LoadQueue(1.0, 1))
        self.session = GatewaySession(admission, segment_owners, domain)
        self.session.link = self

    def send_response(self, response: InferResponse) -> None:
        self.session._pending[response.id] = entry_of()
        self.session._send_response(response)


def world(gateways: str = "here") -> tuple[LendingExecutor, Gateway]:
    segment_owners, executor = SegmentOwners("here"), LendingExecutor()
    segment_owners.add_owner(executor)
    return executor, Gateway(segment_owners, gateways)


def test_a_gateway_that_shares_memory_gets_references_and_releases_them() -> None:
    executor, gateway = world()
    response = executor.response(1)
    gateway.send_response(response)
    assert gateway.sent == [response]
    assert executor.releases == []
    gateway.session.on_items([Release((response.segment_name, "1.2.3"))])
    assert executor.releases == [([response.segment_name], False)]
    gateway.session.on_items([Release((response.segment_name,))])
    assert len(executor.releases) == 1, "a second release of a segment is ignored"


def test_a_gateway_that_does_not_gets_bytes() -> None:
    for domain in ("", "elsewhere"):
        executor, gateway = world(domain)
        response = executor.response(1)
        gateway.send_response(response)
        assert gateway.sent[0].payloads == [b"abc"]
        assert executor.releases == [([response.segment_name], False)]


def test_a_response_that_was_lost_with_its_executor_is_an_error() -> None:
    executor, gateway = world("elsewhere")
    response = executor.response(1)
    executor.segments.discard(response.segment_name)
    gateway.send_response(response)
    assert gateway.sent[0].error.code == Unavailable.code


def test_the_segment_of_a_cancelled_response_is_returned() -> None:
    executor, gateway = world()
    response = executor.response(1)
    gateway.session._send_response(response)
    assert (gateway.sent, executor.releases) == ([], [([response.segment_name], False)])


def test_segments_of_a_disconnected_gateway_are_discarded() -> None:
    executor, gateway = world()
    response = executor.response(1)
    gateway.send_response(response)
    gateway.session.on_down()
    assert executor.releases == [([response.segment_name], True)]


def test_a_response_to_a_gateway_that_has_gone_occupies_no_segment() -> None:
    executor, gateway = world()
    response = executor.response(1)
    gateway.session.on_down()
    gateway.send_response(response)
    assert executor.releases == [([response.segment_name], False)]


def test_executors_that_left_or_share_no_memory_get_no_release() -> None:
    segment_owners = SegmentOwners("here")
    left, remote = LendingExecutor(), LendingExecutor("elsewhere")
    segment_owners.add_owner(left)
    segment_owners.remove_owner(left)
    segment_owners.add_owner(remote)
    segment_owners.remove_owner(remote)
    segment_owners.return_segments([f"{os.getpid()}.1.2"])
    assert left.releases == remote.releases == []
    assert not SegmentOwners("").shares_domain("")


def test_an_executor_elsewhere_gets_a_batch_with_all_its_bytes() -> None:
    segments = SegmentPool(8 * MIB)
    here, lost_segment = segments.acquire_segment(MIB), segments.acquire_segment(MIB)
    assert here is not None
    assert lost_segment is not None
    here.view[:3] = b"abc"
    reference, lost = here.range(0, 3), lost_segment.range(0, 3)
    segments.discard(lost_segment.name)
    entries = [entry_of(), entry_of()]
    entries[0].request = InferRequest(1, b"one", [reference, b"x"])
    entries[1].request = InferRequest(2, b"two", [lost])
    message = batch_message(1, Batch(entries, 2, "full"), 0, inline=True)
    first, second = pb.Batch.FromString(message).members
    assert [each.inline for each in first.payloads] == [b"abc", b"x"]
    # The executor reports it lost, and runs the other members.
    assert SharedMemory(second.payloads[0].shared_memory.segment_name, 0, 3) == lost
    kept = pb.Batch.FromString(batch_message(1, Batch(entries, 2, "full"), 0)).members[0]
    assert kept.payloads[0].shared_memory.segment_name == here.name
