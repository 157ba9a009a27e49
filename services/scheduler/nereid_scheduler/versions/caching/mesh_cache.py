"""A scheduler's clients of the mesh's cache: for responses, and for snapshots of sequences."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from nereid_scheduler.versions.caching.cache_client import CacheClient, dial_cache
from nereid_scheduler.versions.caching.cache_secrets import cache_secrets, cache_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.pb import nereid_pb2 as pb
    from nereid.rpc import Channel
    from nereid_scheduler.versions.caching.cache_client import CacheLink

# Seconds that a sequence waits for its snapshot after its executor was lost.
_SNAPSHOT_TIMEOUT_S: Final = 10.0


class MeshCache:
    """Clients of the cache for responses and for snapshots; both are `None` without a cache."""

    def __init__(
        self,
        secret: bytes,
        timeout_ms: float,
        channel: Channel | None,
        open_link: Callable[[], CacheLink] | None,
        *,
        in_this_process: bool,
    ) -> None:
        """Connect to the cache: over channel to another process, or by open_link in this one."""
        self.channel = channel
        self.responses: CacheClient | None = None
        self.snapshots: CacheClient | None = None
        if open_link is None and channel is not None:
            open_link = partial(dial_cache, channel)
        if open_link is not None:
            secrets = cache_secrets(cache_seed(secret))
            open_client = partial(CacheClient, secrets=secrets, in_this_process=in_this_process)
            timeout_s = timeout_ms / 1000
            self.responses = open_client(open_link(), timeout_s=timeout_s)
            self.snapshots = open_client(open_link(), timeout_s=_SNAPSHOT_TIMEOUT_S)

    def usage(self) -> pb.CacheUsage | None:
        """Return the last usage that the cache reported, or `None` without a cache."""
        return None if self.responses is None else self.responses.usage_message()

    async def close(self) -> None:
        """Close the links to the cache."""
        for client in (self.responses, self.snapshots):
            if client is not None:
                client.close()
        if self.channel is not None:
            await self.channel.close()
