"""Reading /proc: numbers out of a stat line, names out of command lines."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.process import Command, ServerProcess, parse_stat, process_name


def test_parse_stat_survives_any_command_name() -> None:
    tail = "S 7 8 9 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 3 0 987654 1 2"
    stat = parse_stat(f"42 (a (b) c) {tail}")
    assert (stat.pid, stat.parent, stat.session, stat.started) == (42, 7, 9, 987654)
    assert stat.cpu_s == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (
            ["/v/bin/python3.11", "-m", "nereid_mesh.serve.joined", "--x=1"],
            "nereid_mesh.serve.joined",
        ),
        (["/v/bin/python", "/v/bin/nereid", "serve"], "nereid"),
        (["/v/bin/python", "-u", "-X", ""], "python"),
        (["/t/bin/tritonserver", "-m", "x"], "tritonserver"),
        (
            ["/v/bin/python", "-c", "from multiprocessing.spawn import spawn_main; x", "--fork"],
            "multiprocessing.spawn",
        ),
        (["/v/bin/python3", "-c", "print()"], "python3"),
        ([""], "?"),
        ([], "?"),
    ],
)
def test_process_name(argv: list[str], name: str) -> None:
    assert process_name(argv) == name


def test_a_paused_server_is_stopped_with_all_of_its_processes(tmp_path: Path) -> None:
    script = "import subprocess; subprocess.run(['sleep', '60'])"
    command = Command([sys.executable, "-c", script], tmp_path / "log")
    with ServerProcess(command) as server:
        (root,) = (pid for pid, name in server.processes().items() if name.startswith("python"))
        server.pause()
        os.waitid(os.P_PID, root, os.WSTOPPED)
        server.resume()
        os.waitid(os.P_PID, root, os.WCONTINUED)
        server.pause()
    assert not server.alive
