"""An echo server in a process of its own, whose memory a test can measure."""

from __future__ import annotations

import asyncio
import sys

from nereid.rpc import Server, ServerOptions
from tests.support.rpc.echo_service import Site


async def main() -> None:
    site = Site()
    options = ServerOptions(
        max_unsent_bytes=16 << 20, connection_window_bytes=4 << 20, write_timeout_s=60.0
    )
    server = Server(site.handlers(), options)
    print(await server.listen("127.0.0.1:0"), flush=True)  # noqa: T201 (its parent reads it)
    while await asyncio.to_thread(sys.stdin.readline):
        site.calls.clear()
    await server.close()


if __name__ == "__main__":
    asyncio.run(main())
