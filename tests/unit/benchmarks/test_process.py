"""Reading /proc: numbers out of a stat line, names out of command lines."""

import os

import pytest

from benchmarks.process import parse_stat, process_name


def test_parse_stat_survives_any_command_name() -> None:
    tail = "S 7 8 9 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 3 0 987654 1 2"
    stat = parse_stat(f"42 (a (b) c) {tail}")
    assert (stat.pid, stat.parent, stat.session, stat.started) == (42, 7, 9, 987654)
    assert stat.cpu_s == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (
            ["/v/bin/python3.11", "-m", "nereid.cli.serve.joined", "--x=1"],
            "nereid.cli.serve.joined",
        ),
        (["/v/bin/python", "/v/bin/nereid", "serve"], "nereid"),
        (["/v/bin/python", "-u", "-X", ""], "python"),
        (["/t/bin/tritonserver", "-m", "x"], "tritonserver"),
        ([""], "?"),
        ([], "?"),
    ],
)
def test_process_name(argv: list[str], name: str) -> None:
    assert process_name(argv) == name
