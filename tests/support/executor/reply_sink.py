"""A sink for a worker's replies, in place of its connection to the executor."""

from __future__ import annotations

import threading
from typing import Any

from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire


class ReplySink:
    """Keeps what is sent, each with its batch."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, wire.Reply]] = []
        # For each call.
        self.arrived = threading.Semaphore(0)

    def send_replies(
        self, batch: int, replies: list[wire.Reply], inputs: Any = None, *, executed: bool = False
    ) -> None:
        self.replies += [(batch, reply) for reply in replies]
        replies.clear()
        self.arrived.release()

    def send_from_finalizer(self, batch: int, reply: wire.Reply) -> None:
        self.replies.append((batch, reply))

    @property
    def sent(self) -> list[tuple[int, int, int]]:
        """Batch, member and flags."""
        return [(batch, reply.member, reply.flags) for batch, reply in self.replies]
