"""`nereid perf` as a user types it: interrupted, piped into other programs, at the wrong port."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid_perf.output.result_file import parse_result, read_result

pytestmark = pytest.mark.slow

_NEREID = (sys.executable, "-c", "from nereid.cli import main; main()")
# Windows never agree, so that only an interrupt or the last window ends a level.
_ENDLESS = ("-p", "100", "-s", "0.01", "-r", "10000", "--warmup-request-count=1")


@pytest.fixture(scope="module")
def mock() -> Iterator[dict[str, str]]:
    argv = [sys.executable, "-m", "nereid_perf.mock", "--http-port=0", "--grpc-port=0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first, second = (process.stdout.readline().split() for _ in range(2))
        try:
            yield {first[0]: first[1], second[0]: second[1]}
        finally:
            process.terminate()
            assert process.wait(20) == 0


def _started(*flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*_NEREID, "perf", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _ended(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_NEREID, *argv], capture_output=True, text=True, timeout=120, check=False
    )


def _read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if text in line:
            return printed
    raise AssertionError(printed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_measured_of_the_level(
    number: signal.Signals, mock: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    flags = ("-m", "x", "-u", mock["http"], *_ENDLESS, "--live=plain", f"--json={path}")
    with _started(*flags, "--concurrency-range=2") as process:
        _read_until(process, "window 3")
        process.send_signal(number)
        printed, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors == "nereid perf: interrupted\n"
    assert "Request concurrency: 2" in printed
    assert "Ended early: interrupted" in printed
    ((measurement,),) = (server.measurements for server in read_result(path).servers)
    assert measurement.requests > 0
    assert not measurement.is_stable
    assert measurement.windows >= 2


def test_a_closed_pipe_keeps_what_was_measured_and_is_no_traceback(
    mock: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    flags = ("-m", "x", "-u", mock["http"], "-p", "100", "-s", "1e6", f"--json={path}")
    with _started(*flags, "--concurrency-range=1:1000") as process:
        _read_until(process, "1 in flight, measured")
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        assert process.wait(60) == 141, errors
    assert "Traceback" not in errors
    (server,) = read_result(path).servers
    assert server.measurements[0].requests > 0


def test_json_without_a_file_is_all_that_is_printed(mock: dict[str, str]) -> None:
    done = _ended("perf", "-m", "x", "-u", mock["http"], "--request-count=20", "--json")
    assert done.returncode in (0, 4), done.stderr
    (server,) = parse_result(done.stdout).servers
    assert server.measurements[0].requests == 20
    assert json.loads(done.stdout)["schema"] == "nereid-perf/1"


def test_how_long_it_takes(mock: dict[str, str]) -> None:
    flags = ("-m", "x", "-u", mock["http"], "--concurrency-range=1:4", "--live=plain")
    with _started(*flags) as process:
        assert "4 levels: 64 s to 4 min" in _read_until(process, "levels")
        process.terminate()
        process.communicate(timeout=30)


def test_the_wrong_port_is_named(mock: dict[str, str]) -> None:
    http, grpc = mock["http"], mock["grpc"]
    for argv, text in (
        (("perf", "-m", "x", "-u", grpc), f"{grpc} is the gRPC port of this server"),
        (("perf", "-m", "x", "-i", "grpc", "-u", http), f"{http} is the HTTP port of this server"),
        (("explain", "-m", "x", "-u", grpc), f"{grpc} is the gRPC port of this server"),
        (("traffic", "x", "1=1", "-u", grpc), f"{grpc} is the gRPC port of this server"),
        (("timeline", "--last=1", "-u", grpc), f"{grpc} is the gRPC port of this server"),
    ):
        done = _ended(*argv)
        assert done.returncode in (1, 2)
        assert text in done.stderr, argv
        assert len(done.stderr.splitlines()) == 1
