"""The cost of a number of inferences."""

from typing import NamedTuple


class Used(NamedTuple):
    """Cost of the inferences.

    model_cpu_s: CPU time of the processes that run the model. cpu_s: CPU time of all processes.
    runs: number of executions.
    """

    inferences: int
    seconds: float
    model_cpu_s: float
    cpu_s: float
    runs: int

    @property
    def rate(self) -> float:
        """Inferences per second."""
        return self.inferences / self.seconds

    @property
    def model_cpu_ms(self) -> float:
        """CPU time per inference of the processes that run the model."""
        return self.model_cpu_s / self.inferences * 1e3

    @property
    def cpu_ms(self) -> float:
        """CPU time per inference of all processes."""
        return self.cpu_s / self.inferences * 1e3

    @property
    def batch(self) -> float:
        """Mean batch size."""
        return self.inferences / self.runs if self.runs else 0.0
