"""How many requests wait for an instance, by the kind of device that it has to be on.

What autoscaling counts: it includes requests that are held because no executor has ever loaded
their model, so that they can start the first one. Changes nothing.
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
    """Requests by one of metrics.DEVICES. One that is held for an ensemble counts for each kind of
    device that its models need.
    """
    waiting: Counter[str] = Counter()
    for served in catalogue.versions():
        if served.runtime is not None and served.runtime.pending:
            waiting[device_of_groups(served.runtime.config.proto)] += served.runtime.pending
    names = Counter((each.name, each.version) for each in held)
    for (name, version), count in names.items():
        # None: which models there are has yet to be read.
        for device in _devices(catalogue, name, version, frozenset()) or {"any"}:
            waiting[device] += count
    return waiting


def _devices(catalogue: Catalogue, name: str, version: str, above: frozenset[str]) -> set[str]:
    """above: the ensembles that it is a step of, which it may be as well by mistake."""
    devices: set[str] = set()
    for draft in catalogue.drafts(name, version):
        if not is_ensemble(draft):
            devices.add(device_of_groups(draft))
            continue
        for step in step_models(draft):
            if step not in above:
                devices |= _devices(catalogue, step, "", above | {name})
    return devices
