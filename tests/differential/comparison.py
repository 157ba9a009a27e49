"""Serves all cases, sends each request in each way, and compares every response.

A request is sent 24 times with one head, each time with other values: whatever the mesh remembers
of a head after the 1st, the 2nd, or the 16th of its kind is used by those behind. Models are served
plainly, with two instances, with a response cache, as an ensemble's only step, as its first of two,
and as both of its branches, which divide requests by their rows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.differential import onnx_graphs, python_models, random_graphs
from tests.differential.case import Arrays, Case, DirectCallError
from tests.differential.ways import Clients, Result, Send, ways
from tests.support.mesh.mesh import Mesh, running, until

POSITIONS = 24
RANDOM_GRAPHS = 12
# Requests in flight together, in rounds.
TOGETHER = 8
# Large tensors take their own way from the first request on.
_LARGE_POSITIONS = 6
_VARIANTS = {
    "": "",
    "_two": "instance_group [{ count: 2 kind: KIND_CPU }]",
    "_cached": "response_cache { enable: true }",
}
_VARIANT_WAYS = {
    "_cached": ("grpc", "http"),
    "_chain": ("together",),
    "_branched": ("together",),
}
# Long enough for requests in flight together, and short for those that come alone.
_DELAY = "dynamic_batching { max_queue_delay_microseconds: 500 }"
_FLAGS = ("--cache-config=local,size=33554432", "--allow-client-shm=true")
_COUNTED_S = 5.0


@dataclass
class Report:
    """Responses that a run has compared, and the differences that it has found."""

    responses: int = 0
    ways: set[str] = field(default_factory=set)
    cases: set[str] = field(default_factory=set)
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.responses} responses of {len(self.cases)} models in {len(self.ways)} ways"
            f" compared in {self.seconds:.0f} s, {len(self.differences)} differ"
        )


def all_cases(seed: int) -> list[Case]:
    """Return all models, with requests and random graphs of this seed."""
    graphs = random_graphs.cases(seed, RANDOM_GRAPHS)
    return [*onnx_graphs.cases(seed), *python_models.cases(seed), *graphs]


def write_repository(root: Path, cases: Sequence[Case]) -> None:
    """Write each case with its variants and its ensemble."""
    for case in cases:
        for suffix, more in _VARIANTS.items():
            model = root / f"{case.name}{suffix}"
            case.build(model / "1")
            batching = _DELAY if case.batching and case.shares_batches else ""
            (model / "config.pbtxt").write_text(case.config_text(f"{more}\n{batching}"))
        _write_config(root / f"{case.name}_ensemble", case.ensemble_text())
        if case.chains:
            passes = f"{case.name}_passes"
            onnx_graphs.write_passing(root / passes / "1", case)
            _write_config(root / passes, onnx_graphs.passing_text(case))
            _write_config(root / f"{case.name}_chain", case.chain_text(passes))
        if case.divides:
            text = case.branched_text(f"{case.name}_two")
            _write_config(root / f"{case.name}_branched", text)


def _write_config(model: Path, text: str) -> None:
    (model / "1").mkdir(parents=True, exist_ok=True)
    (model / "config.pbtxt").write_text(text)


def run(
    root: Path, cases: Sequence[Case], seed: int, *flags: str, stops_early: bool = False
) -> Report:
    """Start a mesh with the cases, and compare. stops_early: the first difference is enough."""
    write_repository(root / "models", cases)
    with running(root / "models", root / "log", *_FLAGS, *flags) as mesh:
        return compare(mesh, cases, seed, stops_early=stops_early)


def compare(mesh: Mesh, cases: Sequence[Case], seed: int, *, stops_early: bool) -> Report:
    """Send all requests to a mesh that serves the cases."""
    report = Report()
    began = time.monotonic()
    clients = Clients(mesh.http, mesh.grpc)
    try:
        every_way = ways(clients)
        unready = _unready(mesh)
        report.differences += [f"seed {seed}, {text}" for text in unready.values()]
        for case in cases:
            if any(model == case.name or model.startswith(f"{case.name}_") for model in unready):
                continue
            sent: list[Result] = []
            for served, model, way, requests, results in _exchanges(case, every_way):
                report.ways.add(way)
                report.cases.add(case.name)
                report.responses += len(results)
                if not model.endswith(("_two", "_cached", "_branched")):
                    # An ensemble's requests are its step's as well.
                    sent += results
                for place, (request, result) in enumerate(zip(requests, results, strict=True)):
                    differs = difference(served, request, result)
                    if differs:
                        report.differences.append(
                            f"seed {seed}, {model} by {way}, request {place + 1}: {differs}"
                        )
                if stops_early and report.differences:
                    return report
            report.differences += _lost_counts(mesh, case, sent)
    finally:
        report.seconds = time.monotonic() - began
        clients.close()
    return report


def _unready(mesh: Mesh) -> dict[str, str]:
    """Models that a direct call loads and the mesh does not, with its reasons."""
    return {
        name: f"{name} is {entry.get('state')}: {entry.get('reason')}"
        for name, entry in mesh.index().items()
        if entry.get("state") != "READY"
    }


def _exchanges(
    case: Case, every_way: dict[str, tuple[Send, Any, bool]]
) -> Iterator[tuple[Case, str, str, list[Arrays], list[Result]]]:
    """The case as it is served, model, way, requests and results of each series."""
    positions = _LARGE_POSITIONS if case.is_large else POSITIONS
    for way, (send, fits, in_company) in every_way.items():
        if fits(case):
            requests = _one_head(case, positions)
            if in_company:
                rounds = [requests[place : place + TOGETHER] for place in range(0, positions, 8)]
                results = [result for each in rounds for result in send(case.name, case, each)]
            else:
                results = send(case.name, case, requests)
            yield case, case.name, way, requests, results
    suffixes = ["_two", "_cached", "_ensemble"]
    suffixes += ["_chain"] if case.chains else []
    suffixes += ["_branched"] if case.divides else []
    for suffix in suffixes:
        served = _as_served(case, suffix)
        requests = _mixed_heads(served, positions // 2)
        # A cached response is one that was given before.
        requests += requests
        model = case.name + suffix
        for way in _VARIANT_WAYS.get(suffix, ("grpc", "together")):
            results = every_way[way][0](model, served, requests)
            yield served, model, f"{way}{suffix}", requests, results


def _as_served(case: Case, suffix: str) -> Case:
    if suffix in _VARIANTS:
        return case
    return case.branched() if suffix == "_branched" else case.composed()


def _one_head(case: Case, count: int) -> list[Arrays]:
    """Requests whose tensors all have the shapes of the first, as far as that has as many."""
    first = _shapes(case.make_request(0))
    alike = (request for request in _requests(case) if _shapes(request) == first)
    found = []
    for request, _ in zip(alike, range(count), strict=False):
        found.append(request)
    return found


def _mixed_heads(case: Case, count: int) -> list[Arrays]:
    return [case.make_request(number) for number in range(count)]


def _requests(case: Case) -> Iterator[Arrays]:
    number = 0
    while True:
        yield case.make_request(number)
        number += 1


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def _lost_counts(mesh: Mesh, case: Case, sent: Sequence[Result]) -> list[str]:
    """Return what a model's statistics miss of its requests, which all have their responses."""
    failed = sum(isinstance(result, str) for result in sent)
    expected = {"success": len(sent) - failed, "fail": failed}

    def counted() -> dict[str, int]:
        counts = mesh.counts(case.name)
        return {name: counts[name] for name in expected}

    with contextlib.suppress(TimeoutError):
        # A request is counted when its response is on its way.
        until(lambda: counted() == expected, "all to be counted", _COUNTED_S)
    counts = counted()
    return [] if counts == expected else [f"{case.name}: {counts} of {expected} were counted"]


def difference(case: Case, request: Arrays, result: Result) -> str:
    """Say what is wrong with a result; empty: it is that of a direct call."""
    try:
        expected = case.call(request)
    except DirectCallError as error:
        return "" if isinstance(result, str) else f"a result, where the runtime says: {error}"
    if isinstance(result, str):
        return f"an error: {result[:300]}"
    for name, datatype, _ in case.outputs:
        if name not in result:
            return f"{name} is missing"
        got_datatype, got_shape, got = result[name]
        wanted = expected[name]
        if got_datatype != datatype:
            return f"{name} is {got_datatype}, not {datatype}"
        shape = wanted.shape
        if got_shape != shape or (got.size and got.shape != shape):
            return f"{name} has shape {got_shape}, not {shape}"
        if datatype == "BYTES":
            same = [_text(each) for each in got.flat] == [_text(each) for each in wanted.flat]
        else:
            same = got.tobytes() == np.ascontiguousarray(wanted).tobytes()
        if not same:
            return f"{name} has other values"
    return ""


def _text(element: Any) -> bytes:
    return element if isinstance(element, bytes) else str(element).encode()
