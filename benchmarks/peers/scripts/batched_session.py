"""Session of onnxruntime with one thread, and a count of its runs. Runs inside the peers.

The counts are two numbers in a mapped file: rows and executions. The benchmark reads them because
these servers have no statistics.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Any

import onnxruntime

_COUNTS = struct.Struct("<QQ")


class BatchedSession:
    """Session that counts rows and executions."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.outputs = os.environ["NEREID_BENCH_OUTPUTS"].split(",")
        self._session = onnxruntime.InferenceSession(
            os.environ["NEREID_BENCH_GRAPH"], options, providers=["CPUExecutionProvider"]
        )
        with Path(os.environ["NEREID_BENCH_COUNTS"]).open("r+b") as file:
            self._counts = mmap.mmap(file.fileno(), _COUNTS.size)

    def run(self, feed: dict[str, Any]) -> list[Any]:
        """Run a batch, and return its outputs."""
        outputs: list[Any] = self._session.run(self.outputs, feed)
        rows, executions = _COUNTS.unpack_from(self._counts)
        rows += len(next(iter(feed.values())))
        _COUNTS.pack_into(self._counts, 0, rows, executions + 1)
        return outputs
