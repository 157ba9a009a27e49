"""Decoder process, which its gateway starts: `python -m nereid_gateway.decoder`."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import NereidError
from nereid_gateway.core.deferred_imports import import_deferred
from nereid_gateway.fronts.grpc import infer_codec
from nereid_gateway.fronts.http.endpoints import generate_schema
from nereid_gateway.plane.decoding import outcomes
from nereid_gateway.plane.decoding.frames import receive_frame, send_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.core.tensors.jobs import Blob

_SET_PARENT_DEATH_SIGNAL: Final = 1
# These modules are imported before memory is limited.
_JOB_MODULES: Final = (infer_codec, generate_schema)


def main(argv: Sequence[str]) -> None:
    """Run jobs until the gateway closes the socket.

    argv: file descriptor of the socket, parent's process id, memory limit in bytes, niceness.
    """
    descriptor, parent, memory_bytes, niceness = map(int, argv)
    channel = socket.socket(fileno=descriptor)
    _die_with_parent(parent)
    os.nice(niceness)
    import_deferred()
    if sys.platform == "linux":
        _limit_memory(memory_bytes)
    # Decoded documents have no cycles. Automatic collections would walk a million lists again and
    # again, so the loop collects once per job.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        while True:
            (job, arguments), blobs = receive_frame(channel)
            message, out = _run_job(job, arguments, blobs)
            del job, arguments, blobs
            send_frame(channel, message, out)
            del message, out
            gc.collect()
    except MemoryError:
        os._exit(outcomes.OUT_OF_MEMORY_EXIT_CODE)
    except (EOFError, OSError):
        # The gateway no longer needs this process.
        return


def _run_job(job: Any, arguments: Any, blobs: list[bytes]) -> tuple[Any, Sequence[Blob]]:
    try:
        result, out = job(blobs, *arguments)
    except NereidError as error:
        return outcomes.Refused(error.code, error.message, error.accepted), ()
    except MemoryError:
        return outcomes.OutOfMemory(), ()
    except Exception:
        return outcomes.Failed(traceback.format_exc()), ()
    return outcomes.Result(result), out


def _limit_memory(memory_bytes: int) -> None:
    """Limit the memory that may be allocated on top of what is mapped already."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    mapped_bytes = pages * resource.getpagesize()
    limit_bytes = mapped_bytes + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # If the machine runs out of memory, the kernel kills this process before the gateway.
    Path("/proc/self/oom_score_adj").write_text("1000")


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
