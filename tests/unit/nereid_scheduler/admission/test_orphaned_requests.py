"""Requests that run while their gateway is disconnected; test_resent_requests.py has the rest."""

import asyncio

from nereid.core.wire.messages import InferResponse
from nereid_scheduler.admission.orphaned_requests import OrphanedRequests


def unexpected(response: InferResponse) -> None:
    raise AssertionError(response)


class Run:
    """A PendingRequest that is executing."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    def set_flow(self, *, paused: bool) -> None:
        raise AssertionError(paused)


async def test_what_nobody_claims_is_cancelled() -> None:
    orphans, run = OrphanedRequests(0.001), Run()
    orphans.adopt(1, run)
    assert orphans.claim(2, unexpected) is None
    await asyncio.wait_for(run.cancelled.wait(), 5)
    assert len(orphans) == 0
    # It has ended at the same time.
    orphans.send(InferResponse(1))


async def test_a_run_is_claimed_once_and_its_response_delivered() -> None:
    orphans, responses = OrphanedRequests(60), asyncio.Queue[InferResponse]()
    orphans.adopt(1, Run())
    claimed = orphans.claim(1, responses.put_nowait)
    assert claimed is not None
    claimed.set_flow(paused=True)
    assert orphans.claim(1, unexpected) is None
    orphans.send(InferResponse(1))
    assert responses.get_nowait().id == 1
    orphans.adopt(2, Run())
    orphans.send(InferResponse(2))
    assert orphans.claim(2, responses.put_nowait) is not None
    assert responses.empty()
    assert (await responses.get()).id == 2
    assert len(orphans) == 0


async def test_a_claimed_run_can_be_cancelled() -> None:
    orphans, run = OrphanedRequests(60), Run()
    orphans.adopt(1, run)
    claimed = orphans.claim(1, unexpected)
    assert claimed is not None
    claimed.cancel()
    assert run.cancelled.is_set()
    assert len(orphans) == 0
