"""What `nereid serve` runs: `planning` beside this makes it, `planned_mesh` runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nereid.config.recovery import DEFAULT_TIMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.observability.logging import LogSettings


@dataclass(frozen=True)
class ChildSpec:
    """One process to keep running. Children of a lower stage are drained before higher ones."""

    name: str
    argv: tuple[str, ...]
    stage: int
    # Variables of its settings that nobody else may see.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Its models may block its interpreter for long while they load.
    may_block: bool = False
    # What it inherits, and the variables by which it finds that.
    descriptors: tuple[int, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    # How long it serves before there is a second process, to take over when the first one ends; see
    # nereid.process.standby. None: there is none.
    standby_after_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SupervisionRules:
    """How children are kept running."""

    # How long a drain may take.
    exit_timeout_s: float
    # Those of our environment that no child inherits.
    secret_variables: frozenset[str] = frozenset()
    # How long a child may show no heartbeat; 0: for ever.
    watchdog_timeout_s: float = 0
    # Before a child is started again; one that has run for so long is started after the shortest.
    longest_pause_s: float = DEFAULT_TIMES.longest_restart_pause_s


class Edge(NamedTuple):
    """An address that clients use."""

    address: str
    # Other servers may listen there as well.
    is_reused: bool
    # It is bound here, for the gateways to inherit, and outlives them.
    is_inherited: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A mesh on this machine."""

    children: tuple[ChildSpec, ...]
    supervision: SupervisionRules
    # Names of the children that serve the edges, by their numbers.
    gateways: tuple[str, ...]
    # Theirs, if they are several.
    group_directory: str
    # By "http", "grpc", "metrics" and the managed ports' names, those that are served.
    edges: Mapping[str, Edge]
    # How long clients wait for a gateway's next process. A restart takes a few seconds; the next of
    # many, with a long pause, does not come soon enough for clients to wait.
    unserved_s: float
    # "yes", "mutual", or empty for HTTP without TLS.
    https: str
    log: LogSettings

    @property
    def addresses(self) -> dict[str, str]:
        """The edges' addresses."""
        return {name: edge.address for name, edge in self.edges.items()}
