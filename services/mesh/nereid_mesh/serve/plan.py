"""The plan of what `nereid serve` runs. `planning` makes the plan, and `planned_mesh` runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nereid.config.recovery import DEFAULT_TIMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.mesh_auth.credentials import Credentials
    from nereid.observability.logging import LogSettings


@dataclass(frozen=True)
class ChildSpec:
    """A child process to keep running. Lower stages are drained before higher ones."""

    name: str
    argv: tuple[str, ...]
    stage: int
    # Variables with secret settings, which no other process may see.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    # True if the child's models may block the interpreter for long while they load.
    may_block: bool = False
    # The variables tell the child the numbers of the descriptors that it inherits.
    descriptors: tuple[int, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    # Time that the child serves before its standby starts; `None` means no standby.
    standby_after_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SupervisionRules:
    """Rules for keeping children running."""

    # Maximum time for draining the children.
    exit_timeout_s: float
    # Variables of this process that no child inherits.
    secret_variables: frozenset[str] = frozenset()
    # Maximum time without a heartbeat; 0 means no limit.
    watchdog_timeout_s: float = 0
    # Maximum pause before a restart. A child that has run for this long gets the shortest pause.
    longest_pause_s: float = DEFAULT_TIMES.longest_restart_pause_s


class Edge(NamedTuple):
    """An address that clients use."""

    address: str
    # True if other servers may listen at the same address.
    is_reused: bool
    # True if this process binds the socket, which then outlives the gateways.
    is_inherited: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a mesh on this machine."""

    children: tuple[ChildSpec, ...]
    supervision: SupervisionRules
    # The children that serve the edges, in the order of the gateways' numbers.
    gateways: tuple[str, ...]
    # Directory that the gateways share if there are several.
    group_directory: str
    # Key: "http", "grpc", "metrics" or the name of a managed port.
    edges: Mapping[str, Edge]
    # Time that clients wait for a gateway's next process.
    unserved_s: float
    # "yes" for HTTPS, "mutual" for HTTPS with client certificates, or "".
    https: str
    # True if the HTTP port serves the console.
    console: bool
    # True if the HTTP port serves OpenAI's API.
    openai: bool
    # True if a client needs a key or a token for inference.
    needs_key: bool
    # Unix socket of a scheduler, and the credentials for calls to it.
    scheduler: str
    credentials: Credentials | None = field(repr=False)
    log: LogSettings

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of the edges, by the names of the edges."""
        return {name: edge.address for name, edge in self.edges.items()}
