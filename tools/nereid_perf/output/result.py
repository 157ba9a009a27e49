"""The result of one run as its JSON file contains it, enough for reports and comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_perf.measurement import Measurement
    from nereid_perf.questions.comparison import Comparison
    from nereid_perf.questions.max_rate import MaxRate


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of the load generator; `cpus`: number of CPUs that it may use."""

    host: str
    system: str
    processor: str
    cpus: int
    memory_bytes: int
    python: str


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """A measured server; `models` are names or name:version, as in the flags.

    batch_size: inferences per request.
    """

    url: str
    protocol: str
    name: str
    version: str
    models: tuple[str, ...]
    measurements: tuple[Measurement, ...]
    batch_size: int = 1
    is_decoupled: bool = False


@dataclass(frozen=True, slots=True)
class FoundRate:
    """A MaxRate without its measurements, which the MeasuredServer has."""

    slo: str
    outcome: str
    rate: float
    missed_at: float | None
    goodput: float
    confirmed_by: int

    @classmethod
    def of(cls, found: MaxRate) -> FoundRate:
        """Return the FoundRate for the result of a search."""
        return cls(
            found.slo,
            found.outcome.value,
            found.rate,
            found.missed_at,
            found.goodput,
            found.confirmed_by,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run on one server, or on A and B; `started` is ISO 8601 with time zone.

    violations: the conditions of --fail-if that hold. percentile: of the curve's knee.
    """

    command: tuple[str, ...]
    started: str
    nereid_version: str
    machine: Machine
    servers: tuple[MeasuredServer, ...]
    percentile: float = 99.0
    slo: str = ""
    max_rate: FoundRate | None = None
    comparisons: tuple[Comparison, ...] = ()
    violations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
