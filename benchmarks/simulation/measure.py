"""Figures of simulated meshes: lines and CPU time per request, and utilisation."""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from benchmarks.simulation.mesh import SimulatedMesh, Size
from benchmarks.simulation.virtual_time import Clock, VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import FrameType

_SCHEDULER = "/scheduler/"
# Clients for each request that could execute at once: more wait than execute.
_CLIENTS_PER_PLACE = 2


@dataclass(frozen=True)
class Figures:
    """Figures of one mesh.

    lines: number of lines of the scheduler's code that are executed per request. cpu_ratio: CPU
    time per request, including the simulation's, divided by that of the smallest mesh. utilisation:
    mean number of executions in progress, divided by the possible number. largest_share: largest
    share of the requests that one scheduler gets.
    """

    size: Size
    lines: float
    cpu_ratio: float
    utilisation: float
    batch: float
    largest_share: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a document."""
        return asdict(self.size) | {
            "lines_per_request": round(self.lines, 1),
            "cpu_ratio": round(self.cpu_ratio, 3),
            "utilisation": round(self.utilisation, 4),
            "mean_batch": round(self.batch, 2),
            "largest_share": round(self.largest_share, 3),
        }


class LineCounter:
    """Context that counts the executed lines of the scheduler's code."""

    def __init__(self) -> None:
        self.lines = 0

    def __enter__(self) -> Self:
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG002
        return self._on_line if _SCHEDULER in frame.f_code.co_filename else None

    def _on_line(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG002
        self.lines += event == "line"
        return self._on_line


def clients_of(size: Size) -> int:
    """Return the number of clients that keep every executor busy."""
    return _CLIENTS_PER_PLACE * size.executors * max(1, size.max_batch_size) + 1


def places_of(size: Size) -> int:
    """Return how many executions are possible at a time."""
    if size.limited:
        return size.executors
    return min(size.executors * (size.asked or size.models), clients_of(size))


def in_virtual_time(clock: Clock, work: Coroutine[Any, Any, Any]) -> Any:
    """Run work in an event loop of its own."""
    loop = VirtualLoop(clock)
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


async def count_lines(size: Size, requests: int) -> float:
    """Return the executed lines per request, which are the same in every run."""
    mesh = await _loaded(size)
    with LineCounter() as counter:
        await mesh.run(requests, clients_of(size))
    await mesh.finish()
    return counter.lines / requests


async def measure(
    size: Size, control: Size, clock: Clock, requests: int, rounds: int
) -> tuple[float, float, float, float]:
    """Return the CPU ratio, utilisation, requests per execution, and largest share.

    The CPU ratio is the CPU time per request, divided by that of the mesh of the size `control`.
    The two meshes take turns, so that other work on the machine affects both. The largest share is
    the largest share of requests at one scheduler.
    """
    mesh, small = await _loaded(size), await _loaded(control)
    gc.collect()
    gc.freeze()
    await mesh.drain()
    await small.drain()
    ratios = []
    for _ in range(rounds):
        control_ns = await _cpu_ns(small, requests)
        ratios.append(await _cpu_ns(mesh, requests) / control_ns)
    gc.unfreeze()
    clients = clients_of(size)
    await mesh.run(2 * clients, clients)
    busy_s, executions, since_ns = mesh.busy_s, mesh.executions, clock.now_ns
    await mesh.run(max(requests, 4 * clients), clients)
    busy_s, executions = mesh.busy_s - busy_s, mesh.executions - executions
    elapsed_s = (clock.now_ns - since_ns) / 1e9
    await mesh.finish()
    await small.finish()
    utilisation = busy_s / elapsed_s / places_of(size)
    batch = max(requests, 4 * clients) / executions
    return statistics.median(ratios), utilisation, batch, mesh.largest_share


async def _cpu_ns(mesh: SimulatedMesh, requests: int) -> float:
    """Return CPU time per request, from an idle mesh to an idle mesh.

    The other mesh must not pay for it.
    """
    clients, before = clients_of(mesh.size), mesh.submitted
    cpu_ns = time.thread_time_ns()
    await mesh.run(max(requests, 4 * clients), clients)
    await mesh.drain()
    return (time.thread_time_ns() - cpu_ns) / (mesh.submitted - before)


async def _loaded(size: Size) -> SimulatedMesh:
    """Return a mesh with all models loaded, whose executors have had their first batches."""
    mesh = SimulatedMesh(size)
    mesh.start()
    await asyncio.sleep(0.001)
    clients = clients_of(size)
    await mesh.run(2 * clients + 2 * size.models, clients)
    return mesh
