"""Model that returns the time that its worker's start and load took, by the worker's clocks."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


def _age_s() -> float:
    """Return the age of this process, in steps of 10 ms; its launcher was the same process."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class TritonPythonModel:
    """The model, under the name by which backends load it."""

    def initialize(self, _args: dict[str, str]) -> None:
        """Read the clocks."""
        self._took = np.array([_age_s(), time.process_time()])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return the figures."""
        tensor = pb_utils.Tensor("SECONDS", self._took)
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
