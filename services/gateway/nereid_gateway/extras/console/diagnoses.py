"""Diagnoses of the models that consoles show in detail, over a window of some looks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nereid.diagnosis.causes import diagnose
from nereid.diagnosis.snapshot import snapshot_of
from nereid.facts.mesh_facts import MeshFacts
from nereid.observability.samples import Samples
from nereid_gateway.extras.console.model_rows import version_facts

if TYPE_CHECKING:
    from nereid.facts import document
    from nereid.facts.mesh_facts import VersionFacts
    from nereid_gateway.extras.console.look import IndexEntry, Look
    from nereid_gateway.extras.console.queries import View

# A window of less would show every fluctuation, a longer one a cause that has been removed.
_WINDOW_S: Final = 10.0
_MIN_S: Final = 3.0
_NOTHING: Final = Samples(b"")


class DiagnosisWindow:
    """Keeps the look at which the window began: 10 to 20 s ago, or the first one."""

    def __init__(self) -> None:
        self._looks: tuple[Look, ...] = ()

    def add(self, look: Look) -> None:
        """Add the latest look."""
        if not self._looks:
            self._looks = (look, look)
        elif look.time_s - self._looks[1].time_s >= _WINDOW_S:
            self._looks = (self._looks[1], look)

    @property
    def begin(self) -> Look:
        """The look at the window's beginning. There has to be one."""
        return self._looks[0]


def diagnosed(look: Look, begin: Look, view: View) -> dict[str, list[document.Diagnosis]]:
    """Return the diagnoses of the view's model between two looks, by version."""
    if look.time_s - begin.time_s < _MIN_S:
        return {}
    return {
        entry.key.version: _diagnosed(entry, look, begin, view)
        for entry in look.index
        if entry.key.name == view.model and view.version in ("", entry.key.version)
    }


def _diagnosed(entry: IndexEntry, look: Look, begin: Look, view: View) -> list[document.Diagnosis]:
    was_in_memory = any(each.key == entry.key and each.in_memory for each in begin.index)
    if was_in_memory and entry.key not in begin.models:
        # The console showed other models then, so that the version's counters are unknown.
        return []
    version = version_facts(entry, look)
    earlier = _facts(version, entry, begin, view)
    facts = replace(_facts(version, entry, look, view), earlier=earlier)
    snapshot = snapshot_of(facts, version, look.time_s - begin.time_s)
    return [diagnosis.document() for diagnosis in diagnose(snapshot)]


def _facts(version: VersionFacts, entry: IndexEntry, look: Look, view: View) -> MeshFacts:
    # Figures of the mesh are for those who may see all its models.
    parts = [look.mesh, look.own] if view.shows_all else []
    samples = Samples.joined(*parts, look.models.get(entry.key, _NOTHING))
    return MeshFacts(entry.key.name, look.server_ready, (version,), metrics=samples)
