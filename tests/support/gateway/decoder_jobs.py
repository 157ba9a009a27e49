"""Jobs of decoder processes, run where the test is; pickled as to and from a process."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nereid.core.errors import NotFound


async def run_here(
    function: Callable[..., tuple[Any, Sequence[Any]]], *arguments: Any, blobs: Sequence[Any] = ()
) -> tuple[Any, list[bytes]]:
    """A RunJob."""
    function, arguments = pickle.loads(pickle.dumps((function, arguments)))
    value, out = function([bytes(blob) for blob in blobs], *arguments)
    return pickle.loads(pickle.dumps(value)), [bytes(blob) for blob in out]


# --- jobs ---------------------------------------------------------------------------------------


def swap(blobs: Sequence[bytes], value: Any) -> tuple[Any, Sequence[bytes]]:
    """The value as it is, the blobs the other way round."""
    return value, blobs[::-1]


def wait_for(_: Sequence[bytes], fifo: str) -> tuple[str, Sequence[bytes]]:
    """Returns when somebody has opened the FIFO to write, and closed it."""
    return Path(fifo).read_text(), ()


def refuse(_: Sequence[bytes]) -> tuple[None, Sequence[bytes]]:
    raise NotFound("there is none", accepted=True)


def fail(_: Sequence[bytes]) -> tuple[None, Sequence[bytes]]:
    raise RuntimeError("a bug")


def crash(_: Sequence[bytes]) -> tuple[None, Sequence[bytes]]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return None, ()


def allocate(_: Sequence[bytes], size_bytes: int) -> tuple[int, Sequence[bytes]]:
    return len(bytes(size_bytes)), ()


def read(_: Sequence[bytes], path: str) -> tuple[str, Sequence[bytes]]:
    return Path(path).read_text(), ()


def environment(_: Sequence[bytes]) -> tuple[list[str], Sequence[bytes]]:
    return list(os.environ), ()
