"""Extracts the part of a timeline that concerns one request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_timeline.joined import Batch, Joined, Request


def lifetime(request: Request) -> tuple[int, int]:
    """Return the start and end of a request's time in the mesh, as far as they were recorded."""
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
    return min((start for start in starts if start), default=0), max(ends, default=0)


def within_lifetime(whole: Joined, number: int) -> Joined:
    """Return the part of a timeline that concerns the request. May raise KeyError."""
    request = whole.requests[number]
    start, end = lifetime(request)
    models = {request.model, *(batch.model for batch, _ in request.attempts)}
    # Waits with an empty version concern any version of the model.
    waiting = {*models, *((name, "") for name, _ in models)}

    def meanwhile(since: int, until: int) -> bool:
        """Return whether the span overlaps the request's lifetime."""
        return since <= end and max(since, until) >= start

    def concerns(batch: Batch) -> bool:
        """Return whether a batch is of one of the request's models and overlaps the lifetime."""
        enqueued = (member.enqueued_ns for member in batch.record.members if member.enqueued_ns)
        since = min(enqueued, default=batch.record.sent_ns)
        return batch.model in models and meanwhile(since, batch.record.finished_ns)

    batches = [batch for batch in whole.batches if concerns(batch)]
    ended = [
        (service, record)
        for service, record in whole.ended
        if (record.model, record.version) in models
        and meanwhile(record.received_ns, record.ended_ns)
    ]
    numbers = {number, *(record.number for _, record in ended)}
    numbers.update(member.number for batch in batches for member in batch.record.members)
    requests = {number: whole.requests[number] for number in numbers if number in whole.requests}
    kept_ids = {id(request) for request in requests.values()}
    alone = {
        executor: [
            record
            for record in records
            if (record.model, record.version) in models
            and meanwhile(record.received_ns, record.written_ns)
        ]
        for executor, records in whole.alone.items()
    }
    return replace(
        whole,
        requests=requests,
        by_gateway={
            gateway: [request for request in some if id(request) in kept_ids]
            for gateway, some in whole.by_gateway.items()
        },
        batches=batches,
        instances=[instance for instance in whole.instances if instance.model in models],
        alone=alone,
        waits=[
            (service, wait)
            for service, wait in whole.waits
            if (wait.model, wait.version) in waiting and meanwhile(wait.from_ns, wait.to_ns)
        ],
        ended=ended,
        events=[event for event in whole.events if meanwhile(event[1].from_ns, event[1].to_ns)],
    )
