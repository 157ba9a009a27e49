"""What tools write to terminals, whatever clients, servers and files say."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest

from nereid.core.terminal import escape_controls, log_to_terminal, print_error, print_lines
from nereid.timeline.records import GatewayRequest, ServiceTimeline, Timeline
from nereid_perf import report
from nereid_perf.output.result_file import write_result
from nereid_timeline import command as timeline
from tests.support import perf_results
from tests.support.timeline_files import write_timeline

ROOT = Path(__file__).parents[4]
TOOLS = (
    "services/mesh/nereid_mesh/check",
    "tools/nereid_explain",
    "tools/nereid_timeline",
    "tools/nereid_perf",
    "tools/nereid_analyze",
)
# They write JSON, usages, or what the tool itself says, and nothing that was read.
OWN_TEXTS = {
    ("services/mesh/nereid_mesh/check/command.py", "print"),
    ("tools/nereid_analyze/result/document.py", "print"),
    ("tools/nereid_explain/command.py", "print"),
    ("tools/nereid_explain/doctor.py", "print"),
    ("tools/nereid_timeline/command.py", "print"),
    ("tools/nereid_perf/mock/command.py", "sys.stdout.write"),
    ("tools/nereid_perf/subcommands.py", "sys.stderr.write"),
    ("tools/nereid_perf/subcommands.py", "sys.stdout.write"),
}
HOSTILE = "a\x1b]0;owned\x07\x1b[2Jb\u202ec\nd\x9bm\u2066\r"
SHOWN = "a\\u001b]0;owned\\u0007\\u001b[2Jb\\u202ec\\nd\\u009bm\\u2066\\r"


def is_plain(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_controls_are_escaped_and_text_is_not() -> None:
    assert escape_controls(HOSTILE) == SHOWN
    assert escape_controls("modèle 模型 \U0001f600\ta") == "modèle 模型 \U0001f600\ta"


def test_lines_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines([HOSTILE, "b"])
    print_error("nereid x", ValueError(HOSTILE))
    shown = capsys.readouterr()
    assert shown.out == f"{SHOWN}\nb\n"
    # A second line cannot pass for one of somebody else.
    assert [line.partition(" x: ")[0] for line in shown.err.splitlines()] == ["nereid"] * 2
    assert is_plain(shown.err)


def test_logged_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_to_terminal("%(levelname)s: %(message)s")
    logging.getLogger("x").warning("%s", HOSTILE)
    assert capsys.readouterr().err == f"WARNING: {SHOWN}\n"


def test_no_tool_writes_what_it_read_as_it_is() -> None:
    found = set()
    for folder in TOOLS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = ast.unparse(node.func)
                    if called in {"print", "sys.stdout.write", "sys.stderr.write"}:
                        found.add((str(path.relative_to(ROOT)), called))
    assert found == OWN_TEXTS


def test_a_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = GatewayRequest(7, HOSTILE, "", "grpc", HOSTILE, HOSTILE, 1, 4_000, 5_000)
    service = ServiceTimeline("gateway", HOSTILE, records=[record])
    path = tmp_path / "file"
    path.write_bytes(write_timeline(Timeline(0, [service], [HOSTILE])))
    timeline.main([str(path)])
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert is_plain(shown)


def test_a_result_of_perf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    write_result(perf_results.sweep(notes=(HOSTILE,)), path)
    assert report.main([str(path)]) == 0
    shown = capsys.readouterr().out
    assert SHOWN in shown
    assert is_plain(shown)
