"""Facts about one model that any client of a mesh can see."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

from google.protobuf.json_format import ParseDict

from nereid.facts.batching import advise_batching, batching_of
from nereid.pb.model_config_pb2 import ModelConfig

if TYPE_CHECKING:
    from nereid.facts.findings import Finding
    from nereid.observability.samples import Samples


# The reason in the index begins with this if the next request loads the model.
_NOT_IN_MEMORY: Final = "not in memory"


def is_in_memory(state: str, reason: str) -> bool:
    """Return whether a version with this state and reason in the index is ready and loaded."""
    return state == "READY" and not reason.startswith(_NOT_IN_MEMORY)


@dataclass(frozen=True)
class ConfigFacts:
    """The completed configuration of a version, and facts derived from it."""

    proto: ModelConfig
    # File and line by the path of a field, if the configuration has several files or variables.
    sources: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_document(cls, config: dict[str, Any]) -> Self:
        """Return the facts in a document of /config; ignore fields of newer servers."""
        proto = ParseDict(config, ModelConfig(), ignore_unknown_fields=True)
        return cls(proto, config.get("sources", {}))

    @cached_property
    def batching(self) -> str:
        """Kind of batching, as named by `batching_of()`."""
        return batching_of(self.proto)

    @cached_property
    def findings(self) -> list[Finding]:
        """Findings about what keeps requests from sharing executions."""
        return advise_batching(self.proto, None)


@dataclass(frozen=True)
class VersionFacts:
    """One version of the model.

    state, reason: as in the repository index; empty if never loaded. config and statistics (/stats)
    are `None` if the mesh does not provide them.
    """

    number: str
    state: str
    reason: str
    ready: bool = False
    config: ConfigFacts | None = None
    statistics: dict[str, Any] | None = None

    @property
    def in_memory(self) -> bool:
        """True if the version is ready and loaded, so that a request causes no load."""
        return is_in_memory(self.state, self.reason)


@dataclass(frozen=True)
class MeshFacts:
    """Facts from one look at a mesh.

    versions: empty if the model is in no repository. names: of all models. metrics: `None` if the
    page cannot be read; metrics_error then has the reason. traffic_warnings: of the mesh; `None`
    if it does not say. shadow_problem: why copies for the shadow are not compared.
    """

    model: str
    server_ready: bool
    versions: tuple[VersionFacts, ...] = ()
    names: tuple[str, ...] = ()
    metrics: Samples | None = None
    metrics_error: str = ""
    traffic_warnings: tuple[str, ...] | None = None
    shadow_problem: str = ""
    # If there is an earlier look, counters count from that look on.
    earlier: MeshFacts | None = field(default=None, repr=False)

    def count(self, name: str, **labels: str) -> float:
        """Return a counter of the metrics page, counted from the earlier look if there was one."""
        now = (None if self.metrics is None else self.metrics.total(name, **labels)) or 0.0
        return now - (0.0 if self.earlier is None else self.earlier.count(name, **labels))

    def counts(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Return counters by the values of one label. Like count(), count since an earlier look."""
        now = {} if self.metrics is None else self.metrics.by_label(name, label, **labels)
        before = {} if self.earlier is None else self.earlier.counts(name, label, **labels)
        return {key: value - before.get(key, 0.0) for key, value in now.items()}

    def gauge(self, name: str, **labels: str) -> float | None:
        """Return the current value of a gauge; `None` if it is unknown."""
        return None if self.metrics is None else self.metrics.total(name, **labels)
