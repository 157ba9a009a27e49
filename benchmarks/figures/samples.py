"""Samples of a run by cell, and the file that keeps them.

A cell is one model, peer, protocol and concurrency; a sample is one round's figures of a cell. The
bare loop has the protocol "-", and its batch size in place of a concurrency.
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
    """Cell of a run."""

    model: str
    peer: str
    protocol: str
    concurrency: int


@dataclass(frozen=True)
class Sample:
    """Figures of one round of a cell. cpu_us: CPU time per request, by process name.

    For streams, infer_per_s counts responses, and p50 and p99 are about the time to the first
    response.
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
    """Return the median of each figure, separately."""
    names = sorted({name for sample in samples for name in sample.cpu_us})
    return Sample(
        infer_per_s=median(sample.infer_per_s for sample in samples),
        p50_us=median(sample.p50_us for sample in samples),
        p99_us=median(sample.p99_us for sample in samples),
        cpu_us={name: median(sample.cpu_us.get(name, 0.0) for sample in samples) for name in names},
        client_cpu_us=median(sample.client_cpu_us for sample in samples),
        batch_size=median(sample.batch_size for sample in samples),
        requests=sum(sample.requests for sample in samples),
    )


def document(samples: Samples, about: dict[str, Any]) -> dict[str, Any]:
    """Return the document for --json: all samples, each cell's medians, and facts about the run."""
    return {
        "format": _FORMAT,
        "about": about,
        "cells": [
            {
                **asdict(cell),
                "median": asdict(middle(rounds)),
                "rounds": [asdict(sample) for sample in rounds],
            }
            for cell, rounds in samples.items()
        ],
    }


def dump(written: dict[str, Any]) -> str:
    """Return a document as text, with a line for each sample and four decimals."""
    cells = []
    for cell in written["cells"]:
        rounds = ",\n   ".join(json.dumps(_rounded(sample)) for sample in cell["rounds"])
        rest = {name: value for name, value in cell.items() if name not in ("rounds", "median")}
        middle_sample = json.dumps(_rounded(cell["median"]))
        head = json.dumps(rest).removesuffix("}")
        cells.append(f'{head},\n  "median": {middle_sample},\n  "rounds": [\n   {rounds}]}}')
    about = json.dumps(written["about"], indent=1)
    listed = ",\n".join(cells)
    return f'{{"format": {written["format"]},\n"about": {about},\n"cells": [\n{listed}\n]}}\n'


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(member) for name, member in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def parse(written: dict[str, Any]) -> tuple[Samples, dict[str, Any]]:
    """Return the samples of a document, and the facts about the run.

    Raises:
        ValueError: it has another format.
    """
    if written.get("format") != _FORMAT:
        raise ValueError(f"figures of format {written.get('format')}, expected {_FORMAT}")
    samples = {
        Cell(cell["model"], cell["peer"], cell["protocol"], cell["concurrency"]): [
            Sample(**one) for one in cell["rounds"]
        ]
        for cell in written["cells"]
    }
    return samples, written["about"]
