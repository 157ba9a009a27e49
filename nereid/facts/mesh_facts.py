"""What a mesh says of one model, as its clients can see it."""

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


# How the index's reason begins for a model that its next request loads.
_NOT_IN_MEMORY: Final = "not in memory"


def is_in_memory(state: str, reason: str) -> bool:
    """Whether a version that the index shows so is ready without being loaded first."""
    return state == "READY" and not reason.startswith(_NOT_IN_MEMORY)


@dataclass(frozen=True)
class ConfigFacts:
    """A version's configuration, completed, and what it says; worked out once."""

    proto: ModelConfig

    @classmethod
    def of_document(cls, config: dict[str, Any]) -> Self:
        """Of the document of /config. A newer server may have fields that nobody here knows."""
        return cls(ParseDict(config, ModelConfig(), ignore_unknown_fields=True))

    @cached_property
    def batching(self) -> str:
        """How its requests are batched."""
        return batching_of(self.proto)

    @cached_property
    def findings(self) -> list[Finding]:
        """What keeps its requests from sharing executions."""
        return advise_batching(self.proto, None)


@dataclass(frozen=True)
class VersionFacts:
    """One version, from the index: state and reason are empty if it was never loaded.

    statistics: the document of /stats. config and statistics are None where the mesh gives none.
    """

    number: str
    state: str
    reason: str
    ready: bool = False
    config: ConfigFacts | None = None
    statistics: dict[str, Any] | None = None

    @property
    def in_memory(self) -> bool:
        """Whether it is ready without being loaded first."""
        return is_in_memory(self.state, self.reason)


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
