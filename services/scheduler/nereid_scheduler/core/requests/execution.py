"""Record of one batch's execution, from which statistics, metrics and traces are made."""

# layout: compiled

from __future__ import annotations


class Execution:
    """Execution of one batch. Times are monotonic; `epoch_ms` is the wall clock at the end."""

    __slots__ = (
        "batch_size",
        "compute_infer_ns",
        "compute_input_ns",
        "compute_output_ns",
        "epoch_ms",
        "finished_ns",
        "gpu_uuid",
        "idle_since_ns",
        "instance",
        "revision",
        "started_ns",
    )

    def __init__(  # noqa: PLR0913, PLR0917 (no data class: one is made for each batch)
        self,
        started_ns: int,
        finished_ns: int,
        epoch_ms: int,
        compute_input_ns: int,
        compute_infer_ns: int,
        compute_output_ns: int,
        revision: bytes = b"",
        gpu_uuid: str = "",
        instance: str = "",
        batch_size: int = 0,
        idle_since_ns: int = 0,
    ) -> None:
        self.started_ns = started_ns
        self.finished_ns = finished_ns
        self.epoch_ms = epoch_ms
        self.compute_input_ns = compute_input_ns
        self.compute_infer_ns = compute_infer_ns
        self.compute_output_ns = compute_output_ns
        self.revision = revision
        self.gpu_uuid = gpu_uuid
        self.instance = instance
        self.batch_size = batch_size
        self.idle_since_ns = idle_since_ns

    @property
    def compute_ns(self) -> int:
        """Sum of the times that the instance reports, in nanoseconds."""
        return self.compute_input_ns + self.compute_infer_ns + self.compute_output_ns
