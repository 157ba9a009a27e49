"""Raw records."""

import csv
from pathlib import Path

import numpy as np

from nereid_perf.measurement import LoadLevel
from nereid_perf.records import RecordFile
from nereid_perf.workers.rows import CANCELLED, FAILED, OK, ROW


def test_a_line_for_each_request(tmp_path: Path) -> None:
    rows = np.array(
        [
            (100, 110, 120, 130, 0, 2, OK, 7, 3),
            (100, 110, 0, 130, 1, 0, CANCELLED, 0, 0),
            (100, 0, 0, 130, 0, 0, FAILED + 1, 0, 0),
        ],
        dtype=ROW,
    )
    path = tmp_path / "records.csv"
    with RecordFile(path) as records:
        records.write(rows, LoadLevel("rate", 2.5), 100, ["one", 'a "second"\nline'])
    with path.open(newline="") as file:
        lines = list(csv.reader(file))
    assert lines == [
        [
            *("kind", "value", "intended_ns", "sent_ns", "first_ns", "last_ns"),
            *("workload", "responses", "outcome", "input_tokens", "output_tokens"),
        ],
        ["rate", "2.5", "0", "10", "20", "30", "0", "2", "ok", "7", "3"],
        ["rate", "2.5", "0", "10", "", "30", "1", "0", "cancelled", "0", "0"],
        ["rate", "2.5", "0", "", "", "30", "0", "0", 'a "second" line', "0", "0"],
    ]
