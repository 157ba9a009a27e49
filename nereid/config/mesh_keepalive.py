"""Keepalive between the services: the flags that all services share.

A service that is stopped or hangs keeps its connections open: only an unanswered ping shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from nereid.config.flags import Topic, flag, seconds

if TYPE_CHECKING:
    from nereid.rpc.http2.limits import Limits

    Options = TypeVar("Options", bound=Limits)

_SHORTEST_TIMEOUT_S: Final = 0.1
# Of both times, where somebody else can go on: then waiting costs more than a wrong verdict does
# (docs/decisions/mesh-protocol.md).
_REPLACEABLE_SHARE: Final = 0.5


def _timeout(text: str) -> float:
    value = seconds(text)
    if value < _SHORTEST_TIMEOUT_S:
        raise ValueError(f"expected at least {_SHORTEST_TIMEOUT_S} seconds")
    return value


@dataclass(frozen=True, kw_only=True)
class MeshKeepaliveSettings:
    """The flags of keepalive between services; every service's settings have them."""

    TOPIC: ClassVar = Topic.MESH

    mesh_keepalive_secs: float = flag(
        2.0,
        "after how long a silence services ping each other; half of it for one of several"
        " schedulers; 0: never",
        seconds,
    )
    mesh_keepalive_timeout_secs: float = flag(
        5.0,
        "when a service that leaves such a ping without a reply counts as lost; half of it for one"
        " of several schedulers; and when a Python model's process that is stopped is started"
        " again",
        _timeout,
    )

    def with_keepalive(self, options: Options, *, replaceable: bool = False) -> Options:
        """The options of a connection between services, with these flags. replaceable: to one of
        several schedulers, whose models the others take over once it counts as lost.
        """
        interval_s, timeout_s = self.keepalive(replaceable=replaceable)
        return replace(options, keepalive_interval_s=interval_s, keepalive_timeout_s=timeout_s)

    def keepalive(self, *, replaceable: bool) -> tuple[float | None, float]:
        """After how long a silence to ping, None: never, and how long to wait for the reply."""
        share = _REPLACEABLE_SHARE if replaceable else 1.0
        interval_s = self.mesh_keepalive_secs * share or None
        return interval_s, self.mesh_keepalive_timeout_secs * share
