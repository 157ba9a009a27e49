"""How requests and batches end in the records of a version."""

from __future__ import annotations

import pytest

from nereid.core.errors import Internal
from nereid.core.wire.messages import InferResponse
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.measurements.latencies import Latencies
from nereid_scheduler.core.requests.entry import Batch
from nereid_scheduler.core.requests.execution import Execution
from tests.support.scheduler.samples import entry_of, records_of
from tests.support.scheduler.world import VersionWorld, turn

MS = 1_000_000
DECOUPLED = "max_batch_size: 8 dynamic_batching { } model_transaction_policy { decoupled: true }"


@pytest.mark.parametrize("begun", [True, False], ids=["fails", "runs again"])
async def test_members_that_ended_before_their_batch_was_lost_have_counted(begun: bool) -> None:
    it = VersionWorld(DECOUPLED)
    instance, _ = it.instance()
    it.submit(1, 2, accepts_many=True)
    await turn()
    reply = pb.Executed(id=1, partial=True, busy=True)
    reply.responses.add(id=1, head=b"head")
    it.model.pool.on_reply(instance, reply.SerializeToString())
    statistics = it.model.statistics
    assert (statistics.success.count, statistics.execution_count) == (0, 0)
    if begun:
        it.model.pool.fail_begun(instance, 1, Internal("no"))
    it.model.pool.lose_instance(instance, "it died")
    assert (statistics.success.count, statistics.execution_count) == (1, 0)
    assert (statistics.fail.count, it.model.dispatcher.pending) == (begun, not begun)


def test_the_first_of_several_responses_of_an_ensemble_counts_when_it_comes() -> None:
    latencies = Latencies((100,), summaries=True)
    records, entry = records_of(latencies), entry_of()
    records.record_response(entry, 0, InferResponse(1, b"head", more=True), 0, 50 * MS)
    execution = Execution(10 * MS, 400 * MS, 0, 0, 0, 0)
    records.end_run(Batch([entry], 1, "single"), execution, several=True)
    assert latencies.first_response is not None
    assert (latencies.first_response.counts, latencies.first_response_ms) == ([1, 0], 50)
    assert latencies.phases is not None
    assert latencies.phases["request"].total == 400_000
