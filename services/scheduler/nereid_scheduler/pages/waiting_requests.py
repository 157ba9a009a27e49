"""Counts requests that wait for an instance, by the kind of device that the instance needs.

Autoscaling uses the counts. Requests without any executor count too, to start the first one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nereid.model_config import device_of_groups
from nereid_scheduler.core.models.dependencies import is_ensemble, step_models

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid_scheduler.core.requests.load_queue import HeldRequest
    from nereid_scheduler.placement.models.catalogue import Catalogue


def waiting_by_device(catalogue: Catalogue, held: Iterable[HeldRequest]) -> Counter[str]:
    """Return the number of waiting requests, by kind of device (metrics.DEVICES).

    A request for an ensemble counts once for each kind of device that its models need.
    """
    waiting: Counter[str] = Counter()
    for served in catalogue.versions():
        if served.runtime is not None and served.runtime.pending:
            waiting[device_of_groups(served.runtime.config.proto)] += served.runtime.pending
    names = Counter((request.name, request.version) for request in held)
    for (name, version), count in names.items():
        # If the result is empty, the models have not been read from the repository yet.
        for device in _devices(catalogue, name, version, frozenset()) or {"any"}:
            waiting[device] += count
    return waiting


def _devices(catalogue: Catalogue, name: str, version: str, above: frozenset[str]) -> set[str]:
    """Return a model's kinds of device. `above`: ensembles to skip, to end cycles of steps."""
    devices: set[str] = set()
    for draft in catalogue.drafts(name, version):
        if not is_ensemble(draft):
            devices.add(device_of_groups(draft))
            continue
        for step in step_models(draft):
            if step not in above:
                devices |= _devices(catalogue, step, "", above | {name})
    return devices
