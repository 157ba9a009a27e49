"""Entry point ``python -m benchmarks.gpu``: checks and times this machine's GPU data path.

Each model runs with each configuration of the data path. First, its outputs are compared with the
CPU's. Then, executed batches are counted. With --fake, the benchmark runs on a fake device in host
memory. This shows that the program works, but the rates mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnxruntime

from benchmarks.failure import BenchError
from benchmarks.gpu.host_model import load_on_host
from benchmarks.gpu.models import GpuModel, models
from nereid.backends import InstanceSpec
from nereid.backends.device_io.device_model import DeviceModel, parts_of
from nereid_executor.backends.onnx import backend
from nereid_executor.core import devices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    # Function that runs batches for some seconds, and returns batches per second.
    Load = Callable[[float], float]

_EXAMPLES = 4
# TF32 is ONNX Runtime's default on GPUs that have it.
_TOLERANCE = 2e-2

_PINNED = "input_pinned_memory { enable: true } output_pinned_memory { enable: true }"
_STAGED = 'parameters { key: "device_io" value { string_value: "1" } }'
_CACHE = """parameters { key: "device_input_cache_bytes" value { string_value: "1000000000" } }
    parameters { key: "device_input_cache_min_bytes" value { string_value: "1024" } }"""


class Way(NamedTuple):
    """A configuration of the path of data to the GPU and back."""

    name: str
    # Text of the configuration.
    text: str
    # True if every batch has the same inputs.
    repeats: bool = False


PLAIN = Way("plain", "")
WAYS = (
    PLAIN,
    Way("pageable", _STAGED),
    Way("pinned", f"{_STAGED} optimization {{ {_PINNED} }}"),
    Way("overlap", f"optimization {{ eager_batching: true {_PINNED} }}"),
    Way("graphs", f"optimization {{ cuda {{ graphs: true }} {_PINNED} }}"),
    Way(
        "graphs+overlap",
        f"optimization {{ eager_batching: true cuda {{ graphs: true }} {_PINNED} }}",
    ),
    Way("same inputs, pinned", f"{_STAGED} optimization {{ {_PINNED} }}", repeats=True),
    Way("same inputs, cache", f"{_CACHE} optimization {{ {_PINNED} }}", repeats=True),
    Way(
        "same inputs, all",
        f"{_CACHE} optimization {{ eager_batching: true {_PINNED} }}",
        repeats=True,
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    arguments = _arguments(argv)
    try:
        report = _run(arguments)
    except BenchError as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    failed = [cell for cell in report["cells"] if cell["wrong"]]
    return 1 if failed else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--fake", action="store_true", help="without a GPU, in host memory")
    parser.add_argument("--gpu", type=int, default=0, help="CUDA's number")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each way in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", help="these models")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    about = _about(arguments)
    print(f"{about['device']}, onnxruntime {about['onnxruntime']}\n")
    print(f"{'model':8}{'rows':>5}  {'way':22}{'outputs':9}{'batches/s':>10}{'x plain':>9}  notes")
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for model in models(small=arguments.fake):
            if arguments.only and model.name not in arguments.only:
                continue
            found = _measure(model, model.write(Path(directory)), arguments)
            for cell in found:
                _print(model, cell, found[0])
            cells += found
    if not cells:
        raise BenchError(f"no model is called {' or '.join(arguments.only)}")
    return {"about": about, "cells": cells}


def _about(arguments: argparse.Namespace) -> dict[str, Any]:
    device = "host memory (--fake: rates mean nothing)"
    if not arguments.fake:
        if not backend.uses_gpus():
            raise BenchError(
                "the installed onnxruntime has no CUDA: install onnxruntime-gpu, on a machine with "
                "an NVIDIA GPU, or try the program with --fake"
            )
        found = {gpu.id: gpu.name for gpu in devices.gpus(None)}
        device = found.get(arguments.gpu, f"GPU {arguments.gpu} (NVML does not show it)")
    return {
        "device": device,
        "onnxruntime": onnxruntime.__version__,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
    }


def _measure(
    each: GpuModel, version_path: Path, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return each way's outputs and rates; ways take turns, round by round."""
    examples = [each.example(seed) for seed in range(_EXAMPLES)]
    plain = backend.load(
        InstanceSpec(config=each.config(""), version=1, version_path=version_path, name=each.name)
    )
    expected = [plain.execute({each.input: one}, [each.output])[0] for one in examples]
    plain.close()
    cells, loads = [], []
    for way in WAYS:
        cell: dict[str, Any] = {"model": each.name, "way": way.name, "wrong": "", "rates": []}
        cells.append(cell)
        try:
            load = _load(each, way, version_path, arguments)
            cell["wrong"] = _check(each, load, examples, expected) or _missing(way, load)
        except Exception as error:
            # An error of a driver or a runtime must not hide the other ways.
            cell["wrong"] = f"{type(error).__name__}: {error}"
            continue
        cell["notes"] = _notes(load)
        loads.append((cell, load, examples[:1] if way.repeats else examples))
    for _ in range(arguments.rounds):
        for cell, load, inputs in loads:
            if not cell["wrong"]:
                cell["rates"].append(_rate(each, load, inputs, arguments.seconds))
                cell["notes"] = _notes(load)
    for _, load, _ in loads:
        load.close()
    return cells


def _load(each: GpuModel, way: Way, version_path: Path, arguments: argparse.Namespace) -> Any:
    config = each.config(way.text)
    if arguments.fake and way is not PLAIN:
        return load_on_host(config, version_path)
    gpu = None if arguments.fake else arguments.gpu
    return backend.load(
        InstanceSpec(config=config, version=1, version_path=version_path, name=each.name, gpu=gpu)
    )


def _check(
    each: GpuModel, load: Any, examples: Sequence[Floats], expected: Sequence[Floats]
) -> str:
    """Return what is wrong with the outputs, or "".

    Each example comes often, and in batches of fewer rows.
    """
    for turn in range(3):
        for one, wanted in zip(examples, expected, strict=True):
            rows = max(1, len(one) >> turn)
            (found,) = load.execute({each.input: one[:rows]}, [each.output])
            if not _near(found, wanted[:rows]):
                return f"off by {np.abs(found - wanted[:rows]).max():.3g}"
    if isinstance(load, DeviceModel):
        return _check_pipelined(each, load, examples, expected)
    return ""


def _missing(way: Way, load: Any) -> str:
    """Return what the way should have used and has not, or ""."""
    if way.name.startswith("graphs") and not load.pipeline.graphs_launched:
        return "no graph was captured; the log says why"
    return ""


def _check_pipelined(
    each: GpuModel, load: DeviceModel, examples: Sequence[Floats], expected: Sequence[Floats]
) -> str:
    """Check outputs with as many batches at a time as the model takes."""
    waiting: list[Floats] = []
    for turn in range(5 * len(examples)):
        if len(waiting) == load.capabilities.pipeline_depth:
            (found,) = load.collect_batch()
            wanted = waiting.pop(0)
            if not _near(found, wanted):
                return "batches in flight are mixed up"
        load.submit_batch({each.input: parts_of(examples[turn % _EXAMPLES])}, [each.output])
        waiting.append(expected[turn % _EXAMPLES])
    while waiting:
        load.collect_batch()
        waiting.pop()
    return ""


def _near(found: Floats, wanted: Floats) -> bool:
    return np.allclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE)


def _rate(each: GpuModel, load: Any, examples: Sequence[Floats], seconds: float) -> float:
    """Return batches per second, with as many in flight as the model takes."""
    outputs = [each.output]
    done = submitted = 0
    parts = [{each.input: parts_of(one)} for one in examples]
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds or not done:
        if isinstance(load, DeviceModel):
            while submitted - done < load.capabilities.pipeline_depth:
                load.submit_batch(parts[submitted % len(parts)], outputs)
                submitted += 1
            load.collect_batch()
        else:
            load.execute({each.input: examples[done % len(examples)]}, outputs)
        done += 1
    if isinstance(load, DeviceModel):
        for _ in range(submitted - done):
            load.collect_batch()
    return done / passed if passed else 0.0


def _notes(load: Any) -> str:
    if not isinstance(load, DeviceModel):
        return ""
    cache = load.pipeline.cache
    notes = [] if cache is None else [f"cache: {cache.hits} hits, {cache.misses} misses"]
    if load.pipeline.has_graphs:
        notes.append(f"graphs launched {load.pipeline.graphs_launched} times")
    return ", ".join(notes)


def _print(each: GpuModel, cell: dict[str, Any], plain: dict[str, Any]) -> None:
    rate = median(cell["rates"]) if cell["rates"] else 0.0
    base = median(plain["rates"]) if plain["rates"] else 0.0
    ratio = f"{rate / base:9.2f}" if rate and base else f"{'':9}"
    outcome = "WRONG" if cell["wrong"] else "right"
    notes = cell["wrong"] or cell.get("notes", "")
    print(f"{each.name:8}{each.rows:5}  {cell['way']:22}{outcome:9}{rate:10.1f}{ratio}  {notes}")


if __name__ == "__main__":
    raise SystemExit(main())
