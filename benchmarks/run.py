"""Runs one model on its peers side by side. In each round, another peer is the first."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import measure
from benchmarks.failure import BenchError
from benchmarks.figures.ratios import is_ours
from benchmarks.figures.samples import BARE, NO_PROTOCOL, Cell, Sample, Samples
from benchmarks.models.workload import Workload
from benchmarks.peers import bare
from benchmarks.peers.start import Options, protocols, start


@dataclass(frozen=True)
class Plan:
    """Plan of a run; empty seconds, concurrency and protocols stand for the model's defaults."""

    peers: Sequence[str]
    rounds: int
    seconds: float | None
    protocols: Sequence[str] = ()
    concurrency: Sequence[int] = ()
    options: Options = field(default_factory=Options)


class Run:
    """The run of one model; `samples` keeps all samples so far, even if the run fails."""

    def __init__(
        self, workload: Workload, plan: Plan, work: Path, stack: ExitStack, samples: Samples
    ) -> None:
        self._workload, self._plan, self._samples = workload, plan, samples
        self._work, self._stack = work, stack
        self._seconds = plan.seconds or workload.seconds
        self._protocols = {
            name: [protocol for protocol in protocols(name, workload) if self._is_wanted(protocol)]
            for name in plan.peers
            if name != BARE
        }
        self._names = [name for name, spoken in self._protocols.items() if spoken]
        self._peers: dict[str, measure.Peer] = {}

    def _is_wanted(self, protocol: str) -> bool:
        # A decoupled model has only streams, so that --protocol does not concern it.
        return not self._plan.protocols or protocol in (*self._plan.protocols, "stream")

    def run(self) -> None:
        """Measure all cells in each round."""
        for name in list(self._names):
            try:
                self._peers[name] = self._start(name)
            except (BenchError, OSError) as error:
                self._give_up(name, error)
        for turn in range(self._plan.rounds):
            for cell in self._cells(turn):
                if cell.peer in self._peers:
                    self._measure(turn, cell)
            if BARE in self._plan.peers and self._workload.graph is not None:
                self._bare_round()

    def _cells(self, turn: int) -> list[Cell]:
        """Return one round's cells: peers alternate, and another one leads in each round."""
        lead = turn % len(self._names) if self._names else 0
        order = [*self._names[lead:], *self._names[:lead]]
        return [
            Cell(self._workload.name, name, protocol, concurrency)
            for protocol in self._workload.protocols
            for concurrency in self._plan.concurrency or self._workload.concurrency
            for name in order
            if protocol in self._protocols[name]
        ]

    def _start(self, name: str) -> measure.Peer:
        peer = start(name, self._plan.options, self._workload, self._work, self._stack)
        spoken = self._protocols[name]
        peer.prepare(spoken, client_calls="http" in protocols(name, self._workload))
        if peer.polls:
            peer.server.pause()
        return peer

    def _measure(self, turn: int, cell: Cell) -> None:
        """Take one sample.

        Nereid gets no second chance. A tritonserver that crashed (it does, now and then, when
        h2load hangs up) is started anew and measured again; any other peer that fails is left out
        from then on.
        """
        try:
            sample = self._sample(cell)
        except (BenchError, OSError) as error:
            crashed = not self._peers[cell.peer].server.alive
            if is_ours(cell.peer):
                raise
            if cell.peer != "triton" or not crashed:
                self._give_up(cell.peer, error)
                return
            print(f"note: {str(error).splitlines()[0]}; it is started anew", file=sys.stderr)
            self._peers["triton"] = self._start("triton")
            sample = self._sample(cell)
        self._samples.setdefault(cell, []).append(sample)
        print(
            f"round {turn + 1} {cell.model} {cell.protocol} c={cell.concurrency} {cell.peer}: "
            f"{sample.infer_per_s:,.1f} infer/s",
            file=sys.stderr,
            flush=True,
        )

    def _sample(self, cell: Cell) -> Sample:
        peer = self._peers[cell.peer]
        if not peer.polls:
            return measure.measure(peer, cell, self._seconds)
        peer.server.resume()
        try:
            return measure.measure(peer, cell, self._seconds)
        finally:
            peer.server.pause()

    def _give_up(self, name: str, error: Exception) -> None:
        if is_ours(name):
            raise error
        print(f"note: {name} is left out of {self._workload.name}: {error}", file=sys.stderr)
        if peer := self._peers.pop(name, None):
            peer.server.stop()

    def _bare_round(self) -> None:
        request = bare.write(self._work / BARE, self._workload)
        for batch_size in sorted(set(self._plan.concurrency or self._workload.batches)):
            seconds = min(2.0, self._seconds)  # The bare loop is steady: no need for more.
            figures = bare.run(self._workload, request, batch_size, seconds)
            cell = Cell(self._workload.name, BARE, NO_PROTOCOL, batch_size)
            sample = Sample(
                infer_per_s=figures["infer_per_s"],
                p50_us=figures["p50_us"],
                p99_us=figures["p99_us"],
                cpu_us={BARE: figures["cpu_us"]},
                batch_size=float(batch_size),
                requests=int(figures["requests"]),
            )
            self._samples.setdefault(cell, []).append(sample)
