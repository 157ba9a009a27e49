"""The bare loop, in a process of its own: a model without a server."""

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from benchmarks.real_models.subject import Run, Subject
from benchmarks.real_models.used import Used

_open_run: Callable[[int], Run]
_runs: dict[int, Run] = {}


def _open(subject: Subject, threads: int) -> None:
    global _open_run  # noqa: PLW0603 - of the process
    _open_run = subject.open_bare(threads)


def _run(batch_size: int, seconds: float) -> Used:
    run = _runs.get(batch_size)
    if run is None:
        run = _runs[batch_size] = _open_run(batch_size)
        run()
    inferences = runs = 0
    began, cpu_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        inferences += run()
        runs += 1
    cpu_s = time.process_time() - cpu_s
    return Used(inferences, time.perf_counter() - began, cpu_s, cpu_s, runs)


class BareLoop:
    """The bare loop of one subject, in a process of its own."""

    def __init__(self, subject: Subject, threads: int) -> None:
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._process.submit(_open, subject, threads).result()

    def run(self, batch_size: int, seconds: float) -> Used:
        """Run batches for some seconds."""
        return self._process.submit(_run, batch_size, seconds).result()

    def close(self) -> None:
        """End the process."""
        self._process.shutdown()
