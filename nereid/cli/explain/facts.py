"""What a mesh says of one model, as its clients can see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nereid.observability.samples import Samples


# How the index's reason begins for a model that its next request loads.
_NOT_IN_MEMORY: Final = "not in memory"


@dataclass(frozen=True)
class VersionFacts:
    """One version, from the index: state and reason are empty if it was never loaded.

    config and statistics: the documents of /config and /stats; None: the mesh gives none.
    """

    number: str
    state: str
    reason: str
    ready: bool = False
    config: dict[str, Any] | None = None
    statistics: dict[str, Any] | None = None

    @property
    def in_memory(self) -> bool:
        """Whether it is ready without being loaded first."""
        return self.state == "READY" and not self.reason.startswith(_NOT_IN_MEMORY)


@dataclass(frozen=True)
class MeshFacts:
    """One look at a mesh.

    versions: of the model; empty: it is in no repository. names: of all models. metrics: None: the
    page cannot be had.
    """

    model: str
    server_ready: bool
    versions: tuple[VersionFacts, ...] = ()
    names: tuple[str, ...] = ()
    metrics: Samples | None = None
    metrics_error: str = ""
    # Of the first look, where two are compared: counters count from there.
    earlier: MeshFacts | None = field(default=None, repr=False)

    def count(self, name: str, **labels: str) -> float:
        """A counter of the metrics page: since the first look, or ever."""
        now = (None if self.metrics is None else self.metrics.total(name, **labels)) or 0.0
        return now - (0.0 if self.earlier is None else self.earlier.count(name, **labels))

    def counts(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Counters by one of their labels, likewise."""
        now = {} if self.metrics is None else self.metrics.by_label(name, label, **labels)
        before = {} if self.earlier is None else self.earlier.counts(name, label, **labels)
        return {key: value - before.get(key, 0.0) for key, value in now.items()}

    def gauge(self, name: str, **labels: str) -> float | None:
        """What is so now; None: unknown."""
        return None if self.metrics is None else self.metrics.total(name, **labels)
