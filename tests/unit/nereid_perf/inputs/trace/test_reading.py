"""Trace files of either format, one or several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.trace.reading import models_in_traces, read_traces
from nereid_perf.inputs.trace.record import TraceLimits


def test_format_is_known_by_the_files_begin(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.write_text('\n{"at_s": 1, "model": "a"}\n{"at_s": 2, "model": "b", "version": "2"}\n')
    start = {"id": 1, "timestamps": [{"name": "REQUEST_START", "ns": 5}]}
    other.write_text(" \n" + json.dumps([{"id": 1, "model_name": "b"}, start]))
    paths = [str(own), str(other)]
    assert [each.at_ns for each in read_traces(paths)] == [10**9, 2 * 10**9, 5]
    assert models_in_traces(paths) == [("a", ""), ("b", "2"), ("b", "")]


def test_files_without_requests_or_with_too_many(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    with pytest.raises(InputError, match="trace: cannot be read: No such file"):
        [*read_traces([str(file)])]
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        [*read_traces([str(tmp_path)])]
    file.write_text("\n\n")
    with pytest.raises(InputError, match=r"--replay: no request in .*trace"):
        [*read_traces([str(file)])]
    file.write_text('{"at_s": 1, "model": "a"}\n' * 3)
    with pytest.raises(InputError, match="trace:3: more than 2 requests"):
        [*read_traces([str(file)], TraceLimits(requests=2))]
    file.write_bytes(b"\xff\xfe\0")
    with pytest.raises(InputError, match="trace:1: expected a JSON object"):
        [*read_traces([str(file)])]
