import base64
import dataclasses
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from nereid_perf.measurement import (
    ClientCost,
    Latencies,
    LoadLevel,
    Measurement,
    PhaseTiming,
    ServerSplit,
)
from nereid_perf.output.result import FoundRate, Machine, MeasuredServer, Result
from nereid_perf.output.result_file import (
    SCHEMA,
    ResultFileError,
    parse_result,
    read_result,
    result_text,
    write_result,
)
from nereid_perf.questions.comparison import Comparison, Ratio
from nereid_perf.questions.max_rate import RateOutcome, find_max_rate
from nereid_perf.questions.question import resolve
from nereid_perf.questions.slo import parse_slo
from tests.support.measurements import histogram, measured, rate, split

_FLOATS = st.floats(0, 1e9)
_COUNTS = st.integers(0, 2**53)
_TEXTS = st.text(max_size=8)
_LEVELS = st.builds(LoadLevel, st.sampled_from(["concurrency", "rate", "trace"]), _FLOATS)
_HISTOGRAMS = st.lists(st.floats(0.001, 1e6), max_size=4).map(histogram)
_MAYBE = st.none() | _FLOATS


def _tuples(each: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(each, max_size=2).map(tuple)


def _measurements(models: st.SearchStrategy[Any]) -> st.SearchStrategy[Measurement]:
    return st.builds(
        Measurement,
        _LEVELS,
        _FLOATS,
        _COUNTS,
        _COUNTS,
        st.dictionaries(_TEXTS, _COUNTS, max_size=2),
        _COUNTS,
        st.booleans(),
        _COUNTS,
        st.builds(Latencies, _HISTOGRAMS, _HISTOGRAMS, _HISTOGRAMS, _HISTOGRAMS),
        st.builds(ClientCost, _FLOATS, _FLOATS, _COUNTS, st.booleans()),
        _tuples(
            st.builds(
                ServerSplit,
                _TEXTS,
                _TEXTS,
                _COUNTS,
                _COUNTS,
                *[_MAYBE] * 4,
                _COUNTS,
                _COUNTS,
                *[_MAYBE] * 3,
            )
        ),
        st.dictionaries(_TEXTS, st.tuples(_FLOATS, _FLOATS), max_size=2),
        st.dictionaries(_TEXTS, models, max_size=1),
        st.dictionaries(_TEXTS, st.builds(PhaseTiming, _COUNTS, _FLOATS, _FLOATS), max_size=2),
    )


_RESULTS = st.builds(
    Result,
    _tuples(_TEXTS),
    _TEXTS,
    _TEXTS,
    st.builds(Machine, _TEXTS, _TEXTS, _TEXTS, _COUNTS, _COUNTS, _TEXTS),
    _tuples(
        st.builds(
            MeasuredServer,
            _TEXTS,
            _TEXTS,
            _TEXTS,
            _TEXTS,
            _tuples(_TEXTS),
            _tuples(_measurements(_measurements(st.nothing()))),
            _COUNTS,
            st.booleans(),
        )
    ),
    _FLOATS,
    _TEXTS,
    st.none() | st.builds(FoundRate, _TEXTS, _TEXTS, _FLOATS, _MAYBE, _FLOATS, _COUNTS),
    _tuples(
        st.builds(
            Comparison,
            _LEVELS,
            _COUNTS,
            _FLOATS,
            st.booleans(),
            _tuples(st.builds(Ratio, _TEXTS, _FLOATS, _FLOATS, _FLOATS, _MAYBE, _MAYBE)),
            _TEXTS,
        )
    ),
    _tuples(_TEXTS),
    _tuples(_TEXTS),
)


@settings(deadline=None, max_examples=25)
@given(_RESULTS)
def test_what_is_written_is_read_back(result: Result) -> None:
    text = result_text(result)
    again = parse_result(text)
    assert result_text(again) == text
    assert _without_histograms(again) == _without_histograms(result)


def _without_histograms(value: Any) -> Any:
    if isinstance(value, HdrHistogram):
        return value.get_total_count(), value.get_max_value()
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return type(value), [_without_histograms(getattr(value, each.name)) for each in fields]
    if isinstance(value, dict):
        return {key: _without_histograms(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_without_histograms(each) for each in value)
    return value


def _result(**fields: Any) -> Result:
    measurement = measured(
        rate(10), [1000, 2000], server=(split(),), models={"m": measured(rate(5))}
    )
    server = MeasuredServer("localhost:8001", "grpc", "triton", "2.50", ("m",), (measurement,))
    machine = Machine("here", "Linux 6", "a processor", 2, 2**34, "3.11.7")
    return Result(("nereid", "perf"), "2026-01-01T00:00:00Z", "0.2", machine, (server,), **fields)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(_result(), path)
    assert _without_histograms(read_result(path)) == _without_histograms(_result())
    assert json.loads(path.read_text())["schema"] == SCHEMA


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ResultFileError, match=r"none\.json: No such file"):
        read_result(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(ResultFileError, match="binary: 'utf-8'"):
        read_result(tmp_path / "binary")
    (tmp_path / "text").write_text("p99: 3")
    with pytest.raises(ResultFileError, match="text: this is no JSON document"):
        read_result(tmp_path / "text")


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (["schema"], "nereid-perf/2", "its schema is nereid-perf/2"),
        (["schema"], None, "it has no schema"),
        (["servers"], {}, "servers: expected a list"),
        (["servers", 0, "url"], 5, r"servers\[0\]\.url: expected a text"),
        (["servers", 0], "x", r"servers\[0\]: expected an object"),
        (["servers", 0, "measurements", 0, "requests"], True, "requests: expected a whole number"),
        (["servers", 0, "measurements", 0, "is_stable"], 1, "is_stable: expected true or false"),
        (["servers", 0, "measurements", 0, "client", "busy"], "1", "busy: expected a number"),
        (
            ["servers", 0, "measurements", 0, "latencies", "first"],
            "HIST",
            "first: this is no encoded HdrHistogram",
        ),
        (["servers", 0, "measurements", 0, "gauges"], {"g": [1]}, r"gauges\.g: expected 2 values"),
        (["servers", 0, "measurements", 0, "models"], [], "models: expected an object"),
        (["max_rate"], {"slo": ""}, r"max_rate\.outcome is missing"),
    ],
)
def test_a_document_that_is_refused(path: list[Any], value: Any, error: str) -> None:
    document = json.loads(result_text(_result()))
    inner = document
    for each in path[:-1]:
        inner = inner[each]
    inner[path[-1]] = value
    with pytest.raises(ResultFileError, match=error):
        parse_result(json.dumps(document))


def test_a_document_nested_without_end() -> None:
    with pytest.raises(ResultFileError, match="nested too deeply"):
        parse_result("[" * 100_000)
    document = json.loads(result_text(_result()))
    measurement = document["servers"][0]["measurements"][0]
    text = json.dumps(measurement)
    inner = text
    for _ in range(300):
        inner = text.replace('"models": {', f'"models": {{"deeper": {inner}, ', 1)
    document["servers"][0]["measurements"] = ["deep"]
    with pytest.raises(ResultFileError, match="nested too deeply"):
        parse_result(json.dumps(document).replace('"deep"', inner))


def test_no_document() -> None:
    with pytest.raises(ResultFileError, match="it has no schema"):
        parse_result("[]")


def test_what_a_newer_writer_adds_is_skipped_and_an_older_one_left_out_has_its_default() -> None:
    document = json.loads(result_text(_result()))
    document["colour"] = "red"
    del document["comparisons"]
    assert parse_result(json.dumps(document)).comparisons == ()


def test_a_found_rate_leaves_its_measurements_to_the_server() -> None:
    slo = parse_slo("p99=20ms")
    found = resolve(find_max_rate(slo), lambda level: measured(level, [1e5], duration_s=1))
    kept = FoundRate.of(found)
    assert (kept.slo, kept.outcome, kept.rate) == ("p99=20ms", RateOutcome.NONE.value, 0)


def encoded(content: bytes) -> str:
    """An encoded histogram with this content, and the head of a real one."""
    head = base64.b64decode(histogram([1.0]).encode())[:4]
    compressed = zlib.compress(content, 9)
    return base64.b64encode(head + struct.pack(">I", len(compressed)) + compressed).decode()


BOMBS = {
    "deep": b"[" * 100_000,
    "a long number": b"1" * 1_000_000,
    "a deep schema": b'{"schema": ' + b"[" * 100_000,
    "not UTF-8": b"\xff",
    "endless": b" " * (65 << 20),
}


@pytest.mark.parametrize("name", BOMBS)
def test_documents_that_nobody_writes_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(BOMBS[name])
    with pytest.raises(ResultFileError):
        read_result(path)


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(ResultFileError, match="more than 67108864 bytes"):
        read_result(Path("/dev/zero"))


def test_a_histogram_that_grows_beyond_any_is_refused() -> None:
    """One megabyte became two gigabytes."""
    text = re.sub(r'"HIST[^"]*"', f'"{encoded(bytes(64 << 20))}"', result_text(_result()), count=1)
    with pytest.raises(ResultFileError, match="no encoded HdrHistogram: more than 8388608 bytes"):
        parse_result(text)


def test_a_number_beyond_any_float_is_refused() -> None:
    text = re.sub(r"(: )[0-9]+\.[0-9]+", r"\g<1>1" + "0" * 400, result_text(_result()), count=1)
    with pytest.raises(ResultFileError, match="the number is too large"):
        parse_result(text)
