"""`nereid timeline` over HTTP and from files: what it asks, prints and writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from nereid.timeline import PATH
from nereid.timeline.wire import CONTENT_TYPE
from nereid_timeline import command
from tests.support.peers.http_server import http_server
from tests.support.peers.perfetto_traces import trace_of
from tests.support.scripted_timeline import MS, Load, S, scripted
from tests.support.timeline_files import write_timeline

pytestmark = pytest.mark.slow


@contextmanager
def serving(body: bytes, key: str = "") -> Iterator[tuple[str, list[str]]]:
    """A gateway's address, and what it was asked."""
    asked: list[str] = []
    pages = {PATH: body, "/v2/models/m/versions/1/config": b'{"max_batch_size": 8}'}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            page = pages.get(self.path.partition("?")[0])
            status = 404 if page is None else 200
            if key and self.headers.get("X-Key") != key:
                status, page = 403, json.dumps({"error": "no"}).encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(page or b"")

    with http_server(Handler) as address:
        yield address, asked


def test_a_healthy_mesh(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = write_timeline(scripted(Load(), seconds=1))
    raw, trace = tmp_path / "raw", tmp_path / "trace.pftrace"
    with serving(data, key="k") as (address, asked):
        flags = [f"--url={address}", "--header=X-Key: k", "--last=30s"]
        assert command.main([*flags, "--json", f"--raw={raw}", "-o", str(trace)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert asked[0] == f"{PATH}?last=30"
    assert document["format"] == "nereid.timeline/1"
    assert document["problems"] is False
    assert document["seconds"] == 1.0
    fill = next(each for each in document["statements"] if each["code"] == "batch-fill")
    assert fill["figures"]["max_batch_size"] == 8
    assert len(document["slowest"]) == 10
    assert raw.read_bytes() == data
    assert len(trace_of(trace.read_bytes()).packet) > 1000
    assert {each.name for each in tmp_path.iterdir()} == {"raw", "trace.pftrace"}


def test_recording_from_now_on(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(write_timeline(scripted(Load(), seconds=1))) as (address, asked):
        assert command.main([f"--url={address}", "--seconds=10ms"]) == 0
    assert asked[0] == f"{PATH}?last=0.01"
    assert "was idle" in capsys.readouterr().out


def test_a_file_with_a_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    raw, trace = tmp_path / "raw", tmp_path / "trace.json"
    raw.write_bytes(write_timeline(scripted(Load(stalls={"e0": [(2 * S, 900 * MS)]}))))
    assert command.main([str(raw), "--format=chrome", "-o", str(trace)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("problem: instance m_0_e0 of executor e0 stalled once, for 90")
    assert "the slowest requests:" in printed
    assert "queue" in printed
    assert max(map(len, printed.splitlines())) <= 100
    assert json.loads(trace.read_bytes())["traceEvents"]
    # It was over by then.
    assert command.main([str(raw), "--last=1s"]) == 0


@pytest.mark.parametrize(
    ("body", "key", "text"),
    [(b"", "k", "responds with 403: no"), (b"\xff", "", "this is no timeline")],
    ids=["refused", "something else"],
)
def test_a_mesh_that_does_not_say(
    body: bytes, key: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(body, key) as (address, _):
        assert command.main([f"--url={address}", "--last=1s"]) == 2
    assert text in capsys.readouterr().err


def test_files_that_cannot_be_read_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
    raw = tmp_path / "raw"
    raw.write_bytes(write_timeline(scripted(Load(), seconds=0.2)))
    assert command.main([str(raw), "-o", str(tmp_path / "none" / "trace")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_one_request(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = write_timeline(scripted(Load(), seconds=1))
    trace = tmp_path / "trace.json"
    with serving(data) as (address, asked):
        flags = [f"--url={address}", "--request=7", "--format=chrome", "-o", str(trace)]
        assert command.main(flags) == 0
    # All that is kept.
    assert asked == [f"{PATH}?last=100000"]
    printed = capsys.readouterr().out
    assert "executed in batch" in printed
    assert "request 7:\n" in printed
    assert "number 7, request r7): gateway 0.12" in printed
    slices = [each["args"] for each in json.loads(trace.read_bytes())["traceEvents"]
              if each["name"] == "request"]  # fmt: skip
    assert "r7" in {each["request_id"] for each in slices}
    assert len(slices) < 20
    raw = tmp_path / "raw"
    raw.write_bytes(data)
    assert command.main([str(raw), "--request=7", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["request_id"] for each in document["slowest"]] == ["r7"]


def test_a_request_that_is_not_known(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    raw, trace = tmp_path / "raw", tmp_path / "trace"
    raw.write_bytes(write_timeline(scripted(Load(), seconds=1)))
    assert command.main([str(raw), "--request=123456789", "-o", str(trace)]) == 2
    printed = capsys.readouterr().err
    assert "no request 123456789 among the 1.0 s that were recorded" in printed
    assert "--timeline-seconds" in printed
    assert not trace.exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["--url=ftp://x"],
        ["--header=nothing"],
        ["--last=0"],
        ["--last=soon"],
        ["--last=1s", "--seconds=1"],
        ["--format=pdf"],
        ["--request=r7"],
    ],
)
def test_usage(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(flags)
    assert refused.value.code == 2
    assert "usage: nereid timeline" in capsys.readouterr().err
