"""What a run brings forth: samples by cell, and the file that keeps them.

A cell is one model, peer, protocol and concurrency; a sample is one round's figures of a cell. The
bare loop's protocol is "-", and its batch size stands where the others have their concurrency.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

BARE = "bare"
NO_PROTOCOL = "-"
_FORMAT = 1


@dataclass(frozen=True)
class Cell:
    model: str
    peer: str
    protocol: str
    concurrency: int


@dataclass(frozen=True)
class Sample:
    """One round's figures of a cell; CPU is per request, by process name.

    Of streams, infer_per_s counts responses; p50 and p99 are of the time to the first one.
    """

    infer_per_s: float
    p50_us: float
    p99_us: float
    cpu_us: dict[str, float]
    client_cpu_us: float = 0.0
    batch_size: float = 0.0
    requests: int = 0


Samples = dict[Cell, list[Sample]]


def middle(samples: Sequence[Sample]) -> Sample:
    """The median of each figure by itself."""
    names = sorted({name for sample in samples for name in sample.cpu_us})
    return Sample(
        infer_per_s=median(each.infer_per_s for each in samples),
        p50_us=median(each.p50_us for each in samples),
        p99_us=median(each.p99_us for each in samples),
        cpu_us={name: median(each.cpu_us.get(name, 0.0) for each in samples) for name in names},
        client_cpu_us=median(each.client_cpu_us for each in samples),
        batch_size=median(each.batch_size for each in samples),
        requests=sum(each.requests for each in samples),
    )


def document(samples: Samples, about: dict[str, Any]) -> dict[str, Any]:
    """For --json: every sample, each cell's medians, and what the run was."""
    return {
        "format": _FORMAT,
        "about": about,
        "cells": [
            {
                **asdict(cell),
                "median": asdict(middle(rounds)),
                "rounds": [asdict(each) for each in rounds],
            }
            for cell, rounds in samples.items()
        ],
    }


def dump(written: dict[str, Any]) -> str:
    """Such a document as text: a line for each sample, numbers to four decimals."""
    cells = []
    for cell in written["cells"]:
        rounds = ",\n   ".join(json.dumps(_rounded(each)) for each in cell["rounds"])
        rest = {name: value for name, value in cell.items() if name not in ("rounds", "median")}
        middle_sample = json.dumps(_rounded(cell["median"]))
        head = json.dumps(rest).removesuffix("}")
        cells.append(f'{head},\n  "median": {middle_sample},\n  "rounds": [\n   {rounds}]}}')
    about = json.dumps(written["about"], indent=1)
    listed = ",\n".join(cells)
    return f'{{"format": {written["format"]},\n"about": {about},\n"cells": [\n{listed}\n]}}\n'


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def parse(written: dict[str, Any]) -> tuple[Samples, dict[str, Any]]:
    """The samples of such a document, and what its run was. Raises ValueError: another format."""
    if written.get("format") != _FORMAT:
        raise ValueError(f"figures of format {written.get('format')}, expected {_FORMAT}")
    samples = {
        Cell(each["model"], each["peer"], each["protocol"], each["concurrency"]): [
            Sample(**one) for one in each["rounds"]
        ]
        for each in written["cells"]
    }
    return samples, written["about"]
