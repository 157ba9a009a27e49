"""All that model.py files can import from c_python_backend_utils: more names, for annotations."""

from __future__ import annotations

from ..connection.executor_connection import current_connection
from . import api
from .api import *  # noqa: F403 - the names are the API's
from .metrics import COUNTER, GAUGE, HISTOGRAM, MetricKind
from .model_calls import ResponseIterator
from .requests import MemoryType


class SharedMemory:
    """The segments of this worker; models look for leaks by them."""

    def free_memory(self) -> int:
        """Bytes that no request in flight uses; 0: the model's requests have no shared memory."""
        return current_connection().segments.available


shared_memory = SharedMemory()

__all__ = [  # noqa: PLE0604 - names of the API
    *api.__all__,
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "MemoryType",
    "MetricKind",
    "ResponseIterator",
    "SharedMemory",
    "shared_memory",
]

for _made in (MemoryType, MetricKind, ResponseIterator, SharedMemory):
    _made.__module__ = "c_python_backend_utils"
