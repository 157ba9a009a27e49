"""Results of `nereid check`: models, their versions, and findings about the models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.facts.findings import Finding, Severity
    from nereid.pb import model_config_pb2


@dataclass(frozen=True, slots=True)
class PlacedCount:
    """Equal instances on one device. device is "cpu", or "gpu" and the GPU's number."""

    name: str
    device: str
    count: int
    passive: bool = False


@dataclass(frozen=True, slots=True)
class CheckedVersion:
    """One version, as it would be served. UNKNOWN: this machine cannot tell."""

    number: int
    state: str
    reason: str = ""
    config: model_config_pb2.ModelConfig | None = None
    instances: tuple[PlacedCount, ...] = ()


@dataclass(slots=True)
class CheckedModel:
    """A model of a repository, or a requested one that is in none and has no path."""

    name: str
    path: str = ""
    namespace: str = ""
    versions: list[CheckedVersion] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    # File and line by the path of a field, if the configuration has several files or variables.
    sources: Mapping[str, str] = field(default_factory=dict)

    def count(self, severity: Severity) -> int:
        """Return the number of findings with this severity."""
        return sum(finding.severity is severity for finding in self.findings)
