"""What a timeline has of one request's lifetime: itself, its batches with all their members, and
what its instances and its model's queue did meanwhile. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_timeline.joined import Batch, Joined, Request


def lifetime(request: Request) -> tuple[int, int]:
    """From when until when a request was in the mesh, as far as that was recorded."""
    starts, ends = [], []
    if request.gateway is not None:
        starts.append(request.gateway.received_ns)
        ends.append(request.gateway.ended_ns)
    if request.ended is not None:
        starts.append(request.ended.received_ns)
        ends.append(request.ended.ended_ns)
    for batch, member in request.attempts:
        starts.append(member.received_ns)
        ends.append(batch.record.finished_ns)
    return min((each for each in starts if each), default=0), max(ends, default=0)


def within_lifetime(whole: Joined, number: int) -> Joined:
    """What of a timeline happened in a request's lifetime and has to do with it; raises KeyError:
    there is no such request.
    """
    request = whole.requests[number]
    start, end = lifetime(request)
    models = {request.model, *(batch.model for batch, _ in request.attempts)}
    # Some waits are of any version.
    waiting = {*models, *((name, "") for name, _ in models)}

    def meanwhile(since: int, until: int) -> bool:
        return since <= end and max(since, until) >= start

    def concerns(batch: Batch) -> bool:
        enqueued = (each.enqueued_ns for each in batch.record.members if each.enqueued_ns)
        since = min(enqueued, default=batch.record.sent_ns)
        return batch.model in models and meanwhile(since, batch.record.finished_ns)

    batches = [each for each in whole.batches if concerns(each)]
    ended = [
        (service, each)
        for service, each in whole.ended
        if (each.model, each.version) in models and meanwhile(each.received_ns, each.ended_ns)
    ]
    numbers = {number, *(each.number for _, each in ended)}
    numbers.update(each.number for batch in batches for each in batch.record.members)
    requests = {each: whole.requests[each] for each in numbers if each in whole.requests}
    kept = {id(each) for each in requests.values()}
    alone = {
        executor: [
            each
            for each in records
            if (each.model, each.version) in models and meanwhile(each.received_ns, each.written_ns)
        ]
        for executor, records in whole.alone.items()
    }
    return replace(
        whole,
        requests=requests,
        by_gateway={
            gateway: [each for each in some if id(each) in kept]
            for gateway, some in whole.by_gateway.items()
        },
        batches=batches,
        instances=[each for each in whole.instances if each.model in models],
        alone=alone,
        waits=[
            (service, each)
            for service, each in whole.waits
            if (each.model, each.version) in waiting and meanwhile(each.from_ns, each.to_ns)
        ],
        ended=ended,
        events=[each for each in whole.events if meanwhile(each[1].from_ns, each[1].to_ns)],
    )
