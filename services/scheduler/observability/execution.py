"""How one batch was executed: what statistics, metrics and traces are made from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Execution:
    """One batch's execution. Times are monotonic; epoch_ms is the wall clock at its end."""

    started_ns: int  # when an instance was given the batch
    finished_ns: int  # when its responses arrived
    epoch_ms: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    # Of the model as the instance had loaded it; empty where there is no response cache.
    revision: bytes = b""
    # Of the instance's GPU; empty: it is on none.
    gpu_uuid: str = ""
