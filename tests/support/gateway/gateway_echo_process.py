"""A gateway and an echoing scheduler in a process of its own, whose memory a test can measure."""

from __future__ import annotations

import asyncio
import sys

from tests.support.gateway.gateway_site import gateway_site


async def main() -> None:
    async with gateway_site(http_request_timeout_secs=0.5) as site:
        print(site.http, site.grpc, flush=True)  # noqa: T201 (its parent reads it)
        while await asyncio.to_thread(sys.stdin.readline):
            pass


if __name__ == "__main__":
    asyncio.run(main())
