"""Plan of what `nereid serve` runs; `planning` makes it, `planned_mesh` runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nereid.config.recovery import DEFAULT_TIMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.observability.logging import LogSettings


@dataclass(frozen=True)
class ChildSpec:
    """Process to keep running.

    Children of a lower stage are drained before those of a higher one.
    """

    name: str
    argv: tuple[str, ...]
    stage: int
    # Variables of the child's settings that no other process may see.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    # True if the child's models may block its interpreter for long while they load.
    may_block: bool = False
    # Descriptors that the child inherits, and the variables by which it finds them.
    descriptors: tuple[int, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    # Time that the child serves before a second process starts, to take over when the first one
    # ends; see nereid.process.standby. `None` means no second process.
    standby_after_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SupervisionRules:
    """Rules by which children are kept running."""

    # Limit of a drain.
    exit_timeout_s: float
    # Variables of our environment that no child inherits.
    secret_variables: frozenset[str] = frozenset()
    # Limit of the time without a heartbeat; 0 means no limit.
    watchdog_timeout_s: float = 0
    # Longest pause before a child is started again. After a run of this length the next pause is
    # the shortest.
    longest_pause_s: float = DEFAULT_TIMES.longest_restart_pause_s


class Edge(NamedTuple):
    """Address that clients use."""

    address: str
    # True if other servers may listen at the address as well.
    is_reused: bool
    # True if the socket is bound here, outlives the gateways and is inherited by them.
    is_inherited: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a mesh on this machine."""

    children: tuple[ChildSpec, ...]
    supervision: SupervisionRules
    # Names of the children that serve the edges, by their numbers.
    gateways: tuple[str, ...]
    # Directory that the gateways share, if there are several.
    group_directory: str
    # Edges that are served, by "http", "grpc", "metrics" and the managed ports' names.
    edges: Mapping[str, Edge]
    # Time that clients wait for a gateway's next process. A restart takes a few seconds; after many
    # restarts the pause is too long for clients to wait.
    unserved_s: float
    # "yes", "mutual", or "" for HTTP without TLS.
    https: str
    log: LogSettings

    @property
    def addresses(self) -> dict[str, str]:
        """Addresses of the edges."""
        return {name: edge.address for name, edge in self.edges.items()}
