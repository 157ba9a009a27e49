"""Extracts the part of a timeline that concerns some models."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_timeline.joined import Joined


def of_models(whole: Joined, names: frozenset[str]) -> Joined:
    """Return the requests, batches, instances and waits of the models, and the mesh's events."""
    requests = {
        number: request
        for number, request in whole.requests.items()
        if request.model[0] in names
        or any(batch.model[0] in names for batch, _ in request.attempts)
    }
    kept_ids = {id(request) for request in requests.values()}
    return replace(
        whole,
        requests=requests,
        by_gateway={
            gateway: [request for request in some if id(request) in kept_ids]
            for gateway, some in whole.by_gateway.items()
        },
        batches=[batch for batch in whole.batches if batch.model[0] in names],
        instances=[instance for instance in whole.instances if instance.model[0] in names],
        alone={
            executor: [record for record in records if record.model in names]
            for executor, records in whole.alone.items()
        },
        waits=[(service, wait) for service, wait in whole.waits if wait.model in names],
        ended=[(service, record) for service, record in whole.ended if record.model in names],
    )
