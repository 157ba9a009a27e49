"""What a number of inferences took."""

from typing import NamedTuple


class Used(NamedTuple):
    """model_cpu_s: of the processes that run the model; cpu_s: of all. runs: executions."""

    inferences: int
    seconds: float
    model_cpu_s: float
    cpu_s: float
    runs: int

    @property
    def rate(self) -> float:
        return self.inferences / self.seconds

    @property
    def model_cpu_ms(self) -> float:
        """CPU time of an inference."""
        return self.model_cpu_s / self.inferences * 1e3

    @property
    def cpu_ms(self) -> float:
        return self.cpu_s / self.inferences * 1e3

    @property
    def batch(self) -> float:
        return self.inferences / self.runs if self.runs else 0.0
