"""All names that model.py files can import from c_python_backend_utils."""

from __future__ import annotations

from ..connection.executor_connection import current_connection
from . import api
from .api import *  # noqa: F403 - the names are the API's
from .metrics import COUNTER, GAUGE, HISTOGRAM, MetricKind
from .model_calls import ResponseIterator
from .requests import MemoryType


class SharedMemory:
    """The shared memory for the requests that this worker makes; models use it to find leaks."""

    def free_memory(self) -> int:
        """Return the bytes of shared memory that no request uses; 0 if requests use none."""
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
