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
        2.0, "after how long a silence services ping each other; 0: never", seconds
    )
    mesh_keepalive_timeout_secs: float = flag(
        5.0,
        "when a service that leaves such a ping without a reply counts as lost, and when a Python"
        " model's process that is stopped is started again",
        _timeout,
    )

    def with_keepalive(self, options: Options) -> Options:
        """The options of a connection between services, with these flags."""
        return replace(
            options,
            keepalive_interval_s=self.mesh_keepalive_secs or None,
            keepalive_timeout_s=self.mesh_keepalive_timeout_secs,
        )
