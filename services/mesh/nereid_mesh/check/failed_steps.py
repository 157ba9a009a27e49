"""Ensembles of models whose files have errors that a rehearsal does not find."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nereid.facts.findings import Finding, Severity
from nereid_scheduler.core.models.dependencies import step_model
from nereid_scheduler.core.models.lifecycle import VersionState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid_mesh.check.findings import CheckedModel, CheckedVersion

_READY: Final = VersionState.READY.value
_UNAVAILABLE: Final = VersionState.UNAVAILABLE.value


def fail_with_steps(models: Sequence[CheckedModel]) -> None:
    """Make ensembles unavailable that need versions that are, with the scheduler's reason."""
    by_name = {model.name: model for model in models}
    changed = True
    # A changed ensemble may be a step of another one.
    while changed:
        changed = False
        for model in models:
            for place, version in enumerate(model.versions):
                reason = _reason(model, version, by_name)
                if reason:
                    model.versions[place] = replace(version, state=_UNAVAILABLE, reason=reason)
                    finding = Finding(Severity.ERROR, "load", reason)
                    if finding not in model.findings:
                        model.findings.append(finding)
                    changed = True


def _reason(
    ensemble: CheckedModel, version: CheckedVersion, by_name: Mapping[str, CheckedModel]
) -> str:
    """Return why a ready ensemble would not be ready; empty if it is none, or would be."""
    if version.state != _READY or version.config is None:
        return ""
    for step in version.config.ensemble_scheduling.step:
        name = step_model(step)
        model = by_name.get(name)
        needed = [] if model is None else model.versions
        if step.model_version > 0:
            needed = [each for each in needed if each.number == step.model_version]
        if needed and all(each.state == _UNAVAILABLE for each in needed):
            errors = "".join(
                f"version {each.number} is at {each.state} state: {each.reason};" for each in needed
            )
            return (
                f"ensemble '{ensemble.name}' depends on '{name}' which has no loaded version."
                f" Model '{name}' loading failed with error: {errors}"
            )
    return ""
