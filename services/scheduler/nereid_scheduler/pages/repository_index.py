"""Index of the model repositories: every version with its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.pb import kserve_pb2
from nereid_scheduler.core.models.lifecycle import VersionState
from nereid_scheduler.placement.models.catalogue import FoundName, ServedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid_scheduler.core.models.desired_models import DesiredModels
    from nereid_scheduler.placement.models.catalogue import Catalogue

_READY: Final = VersionState.READY.value


def repository_index(
    catalogue: Catalogue,
    desired: DesiredModels,
    found: Mapping[str, FoundName],
    *,
    ready_only: bool,
) -> kserve_pb2.RepositoryIndexResponse:
    """Return every version with its state; for a model without versions, name and reason.

    found: the models in the repositories. A deleted model is listed only while a version is in
    service.
    """
    names = {model.name for model in catalogue.models() if model.in_service}
    names |= found.keys() | desired.last_loads.unrestored | desired.awaited.keys()
    response = kserve_pb2.RepositoryIndexResponse()
    for name in sorted(names):
        model = catalogue.model(name) or ServedModel(name)
        plain = desired.awaited.get(name, model.plain_name)
        shown = found.get(name, FoundName(plain))
        for version, state, reason in _entries(name, model, desired, shown):
            if state == _READY or not ready_only:
                response.models.add(
                    name=shown.plain_name, version=version, state=state, reason=reason
                )
    return response


def _entries(
    name: str, model: ServedModel, desired: DesiredModels, shown: FoundName
) -> list[tuple[str, str, str]]:
    """Return the version, state and reason of each entry of a model."""
    if name in desired.awaited and model.unloaded:
        return [("", VersionState.LOADING.value, "")]
    if shown.reason:
        # As on Triton, show the reason even if the model was loaded while its name was unique.
        model = ServedModel(name, reason=shown.reason)
    on_demand = desired.on_demand.get(name)
    if on_demand is not None and model.unloaded:
        # Requests for a model on demand succeed, so it is READY before they load it.
        state, reason = VersionState.LOADING, ""
        if name not in desired.pending_loads:
            failed = on_demand.error is not None
            state = VersionState.UNAVAILABLE if failed else VersionState.READY
            reason = on_demand.reason
        return [(str(version), state.value, reason) for version in on_demand.found.versions]
    if not model.versions:
        reason = model.reason or desired.last_loads.refusals.get(name, "") or shown.problem
        return [("", VersionState.UNAVAILABLE.value if reason else "", reason)]
    return [
        (str(number), served.life.state.value, served.life.reason)
        for number, served in sorted(model.versions.items())
    ]
