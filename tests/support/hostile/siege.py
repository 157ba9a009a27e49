"""A mesh under ordinary load that hostile clients are let loose on: what others had to bear."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.support.hostile.attack import Attack, Prepared, Target
from tests.support.hostile.honest_process import Measurement
from tests.support.mesh.mesh import Mesh

_DECODER = "gateway.decoder"
# Of each kind of failure, in a report.
_MAX_TEXTS = 5
# Hostile clients that attack at the same time.
_AT_ONCE = 8
_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Report:
    """Outcome of an attack, and what the others saw meanwhile."""

    outcome: str
    took_s: float
    others: Measurement
    # By process, beyond what it had when the siege began: the peak, and what remained.
    peak_mib: dict[str, float]
    left_mib: dict[str, float]
    # Processes that ran at the beginning and no longer do, without decoders, which may end at their
    # limits or when idle.
    ended: frozenset[str]

    @property
    def longest_s(self) -> float:
        """The longest that anybody else had to wait."""
        return max(self.others.longest_s.values())

    def __str__(self) -> str:
        others = self.others
        waits = max(others.longest_s, key=lambda name: others.longest_s[name])
        parts = [
            f"{self.outcome} after {self.took_s:.2f} s",
            f"others waited {self.longest_s * 1e3:.0f} ms ({waits})",
            f"their own lag {others.own_lag_s * 1e3:.0f} ms",
            f"{others.requests} requests",
            f"{len(others.wrong)} wrong, {len(others.refused)} refused, {len(others.errors)} ended",
            f"peak MiB {_rounded(self.peak_mib)}, left {_rounded(self.left_mib)}",
            *others.wrong[:_MAX_TEXTS],
            *others.refused[:_MAX_TEXTS],
            *others.errors[:_MAX_TEXTS],
        ]
        return "; ".join(parts)


def _address(mesh: Mesh, flag: str) -> str:
    """Return the address of a managed port; empty if the mesh has none."""
    ports = [each.removeprefix(flag) for each in mesh.flags if each.startswith(flag)]
    return f"127.0.0.1:{ports[0]}" if ports else ""


def _rounded(by_process: dict[str, float]) -> dict[str, int]:
    return {name: round(value) for name, value in by_process.items()}


class Siege:
    """Honest clients beside a mesh, and what its processes use."""

    def __init__(self, mesh: Mesh, *, grpc: bool = True) -> None:
        """grpc: whether the honest clients use it."""
        self._mesh = mesh
        addresses = [mesh.http, mesh.grpc] if grpc else [mesh.http]
        more = ["--texts"] if "--openai-api" in mesh.flags else []
        if any(flag.startswith("--cache-config=redis") for flag in mesh.flags):
            more.append("--cached")
        self._honest = subprocess.Popen(
            [sys.executable, "-m", "tests.support.hostile.honest_process", *addresses, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            text=True,
        )
        self._start_decoders()
        self.measure_quiet(1)
        self.processes = processes_below(mesh.process.pid)
        self._at_first = {pid: memory_mib(pid, "VmRSS") for pid in self.processes}

    def measure_quiet(self, duration_s: float) -> Measurement:
        """Measure what honest clients see without an attack."""
        self._command("begin")
        time.sleep(duration_s)
        return Measurement(**self._command("end"))

    def attack(self, attack: Attack, source: str = "127.0.0.2", repeats_s: float = 0) -> Report:
        """Let it attack once, and again until repeats_s have passed."""
        target = self._target(source)
        if isinstance(attack.client, Prepared):
            attack.client.prepare()
        self._begin()
        begin = time.monotonic()
        while True:
            start = time.monotonic()
            outcome = attack.client(target)
            took_s = time.monotonic() - start
            if time.monotonic() - begin + took_s > repeats_s:
                break
        if isinstance(attack.client, Prepared):
            attack.client.forget()
        return self._end(outcome, took_s)

    def attack_at_once(
        self,
        attacks: Sequence[Attack],
        duration_s: float,
        meanwhile: Iterable[Callable[[], object]],
    ) -> Report:
        """Let all of them attack, some at a time and again and again, until duration_s have passed.

        Each of those has an address of its own. meanwhile: is called at equal intervals.
        """
        ended = threading.Event()
        order = random.Random(1).sample(attacks, len(attacks))
        following, done = itertools.cycle(order), Counter[str]()
        lock = threading.Lock()

        def client(target: Target) -> None:
            while not ended.is_set():
                with lock:
                    attack = next(following)
                # Whoever is hostile may be disconnected at any moment.
                with contextlib.suppress(OSError):
                    attack.client(target)
                done[attack.name] += 1

        self._begin()
        begin = time.monotonic()
        targets = [self._target(f"127.0.0.{2 + number}") for number in range(_AT_ONCE)]
        threads = [threading.Thread(target=client, args=(each,)) for each in targets]
        for thread in threads:
            thread.start()
        try:
            calls = [*meanwhile]
            for number, call in enumerate(calls, 1):
                ended.wait(begin + duration_s * number / (len(calls) + 1) - time.monotonic())
                call()
            ended.wait(begin + duration_s - time.monotonic())
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        return self._end(f"{len(done)} attacks, {done.total()} times", time.monotonic() - begin)

    def _target(self, source: str) -> Target:
        mesh = self._mesh
        return Target(
            mesh.http,
            mesh.grpc,
            f"127.0.0.1:{mesh.metrics_port}",
            source,
            _address(mesh, "--sagemaker-port="),
            _address(mesh, "--vertex-ai-port="),
        )

    def _begin(self) -> None:
        for pid in self._running():
            # The peak of the resident memory begins anew.
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")
        self._command("begin")

    def _end(self, outcome: str, took_s: float) -> Report:
        others = Measurement(**self._command("end"))
        running = self._running()
        ended = {
            what
            for pid, what in self.processes.items()
            if pid not in running and _DECODER not in what
        }
        return Report(
            outcome,
            took_s,
            others,
            self._beyond_first("VmHWM"),
            self._beyond_first("VmRSS"),
            frozenset(ended),
        )

    def _running(self) -> dict[int, str]:
        """All of the mesh's processes: those that decode requests come and go."""
        return processes_below(self._mesh.process.pid)

    def _beyond_first(self, name: str) -> dict[str, float]:
        beyond: dict[str, float] = {}
        for pid, what in self._running().items():
            with contextlib.suppress(OSError):
                beyond[what] = memory_mib(pid, name) - self._at_first.get(pid, 0)
        return beyond

    def _start_decoders(self) -> None:
        """Start the decoders, which otherwise start with the first large request."""
        body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,400000],"data":[%b]}]}'
        status, _ = self._mesh.get(
            "/v2/models/identity_fp32/infer", "POST", body % b",".join([b"1.5"] * 400_000)
        )
        assert status == HTTPStatus.OK

    def _command(self, word: str) -> dict[str, Any]:
        assert self._honest.stdin is not None
        assert self._honest.stdout is not None
        self._honest.stdin.write(word + "\n")
        self._honest.stdin.flush()
        document: dict[str, Any] = json.loads(self._honest.stdout.readline())
        return document

    def close(self) -> None:
        assert self._honest.stdin is not None
        assert self._honest.stdout is not None
        self._honest.stdin.close()
        self._honest.wait(20)
        self._honest.stdout.close()


@contextlib.contextmanager
def siege(mesh: Mesh, *, grpc: bool = True) -> Iterator[Siege]:
    besieged = Siege(mesh, grpc=grpc)
    try:
        yield besieged
    finally:
        besieged.close()


def processes_below(root: int) -> dict[int, str]:
    """A process and all below it, by what they run."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
            words = (path.parent / "cmdline").read_text().split("\0")
            modules = [word for word in words if word.startswith(("nereid.", "nereid_"))]
            names[int(path.parent.name)] = modules[0] if modules else "nereid serve"
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid].removeprefix("nereid_") + f" {pid}" for pid in sorted(found)}


def memory_mib(pid: int, name: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    words = text.partition(f"{name}:")[2].split()
    # A process that has just ended has no memory.
    return int(words[0]) / 1024 if words else 0.0
