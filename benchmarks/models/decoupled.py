"""Decoupled Python model: 32 responses of 4 values to each request."""

from pathlib import Path

import numpy as np

from benchmarks.models.workload import Workload, write_script

NAME = "decoupled"
RESPONSES = 32
_CONFIG = f"""\
name: "{NAME}"
backend: "python"
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
model_transaction_policy {{ decoupled: true }}
"""


def workload(_cache: Path) -> Workload:
    """Return the workload; the first value of its input is the number of responses."""
    values = np.array([RESPONSES, 1, 2, 3], np.float32)
    return Workload(
        name=NAME,
        served=NAME,
        inputs={"INPUT": values},
        expected={"OUTPUT": values},
        write=lambda repository, _: write_script(repository, NAME, "decoupled.py", _CONFIG),
        graph=None,
        batched=NAME,
        max_batch_size=0,
        protocols=("stream",),
        responses=RESPONSES,
    )
