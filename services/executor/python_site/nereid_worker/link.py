"""The worker's one connection to its executor, for whatever needs it."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import Future
from typing import Any

from . import wire
from .errors import TritonModelException


class Link:
    """Sends, from any thread, what is no answer: logs, metrics, and calls to the mesh."""

    def __init__(self, channel: wire.Channel) -> None:
        self.channel = channel
        # Whether log_verbose is worth sending.
        self.verbose = False
        self.model_dir = ""
        self._numbers = itertools.count(1)
        self._calls: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()

    def tell(self, kind: int, message: Any) -> None:
        self.channel.send(kind, [json.dumps(message).encode()])


_link: Link | None = None


def connect(link: Link) -> None:
    """From now on this is the link."""
    global _link  # noqa: PLW0603 - a process has one
    _link = link


def link() -> Link:
    """The link; raises TritonModelException outside of a worker."""
    if _link is None:
        raise TritonModelException("this only works inside a model that is being served")
    return _link
