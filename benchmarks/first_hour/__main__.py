"""Entry point ``python -m benchmarks.first_hour``: five stories of a new user, with four servers.

Prints a Markdown table of files, lines that are not empty, names to know, and the seconds from the
first command to the first right response (of tests: to their end), the median of the rounds. All
packages have been downloaded before, and each server runs with the ports of its documentation,
which have to be free. Building images needs their base images, so that story is counted alone.
"""

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import onnx
from uv import find_uv_bin

from benchmarks.failure import BenchError
from benchmarks.first_hour.stories import BASE, EXPECTED, SERVERS, STORIES, Server, Story
from benchmarks.peers import environment
from benchmarks.process import Command, ServerProcess, interrupt_on_signals

_FILES = Path(__file__).parent / "files"
_PORTS = (3000, 8000, 8001, 8002)
_LIMIT_S = 120.0
_PAUSE_S = 0.01


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stories and print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_hour", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=[server.name for server in SERVERS], action="append")
    arguments = parser.parse_args(argv)
    interrupt_on_signals()
    servers = [each for each in SERVERS if not arguments.only or each.name in arguments.only]
    taken_s: dict[tuple[str, str], list[float]] = {}
    try:
        for server in servers:
            if server.requirements:
                environment.ensure(_venv(server), *server.requirements, "pytest")
        # In turns, as other work on the machine would disturb one server alone otherwise.
        for _ in range(arguments.rounds):
            for story in (each for each in STORIES if each != "image"):
                for server in servers:
                    taken_s.setdefault((server.name, story), []).append(_seconds(server, story))
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    nereid = f"Nereid {version('nereid-mesh')}"
    names = [" ".join(each.requirements[:1]).replace("==", " ") or nereid for each in servers]
    print(f"{time.strftime('%Y-%m-%d')}, files / lines / names / seconds:\n")
    print(f"| | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for story, described in STORIES.items():
        cells = [_cell(server, story, taken_s.get((server.name, story), [])) for server in servers]
        print(f"| {described} | {' | '.join(cells)} |")
    return 0


def _cell(server: Server, name: str, taken_s: Sequence[float]) -> str:
    folder = _FILES / server.name / name
    files = [path for path in folder.rglob("*") if path.is_file()]
    lines = sum(bool(line.strip()) for path in files for line in path.read_text().splitlines())
    names = len(server.stories[name].concepts)
    seconds = f"{statistics.median(taken_s):.1f}" if taken_s else "-"
    return f"{len(files)} / {lines} / {names} / {seconds}"


def _seconds(server: Server, name: str) -> float:
    story = server.stories[name]
    for port in _PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", port)) == 0:
                raise BenchError(f"port {port} is in use")
    with tempfile.TemporaryDirectory(prefix="first-hour-") as work:
        directory = Path(work, "app")
        for folder in (BASE.get(name), name):
            if folder is not None and (_FILES / server.name / folder).is_dir():
                shutil.copytree(_FILES / server.name / folder, directory, dirs_exist_ok=True)
        directory.mkdir(exist_ok=True)
        if name == "onnx":
            _save_model(directory / "model.onnx")
        environ = _environ(server, Path(work))
        if name == "packages" and server.requirements:
            uninstall = "uv pip uninstall more-itertools toolz"
            subprocess.run(uninstall.split(), env=environ, check=True, stderr=subprocess.DEVNULL)
        return _run(story, EXPECTED.get(name, b""), directory, Path(work, "log"), environ)


def _run(
    story: Story, expected: bytes, directory: Path, log: Path, environ: dict[str, str]
) -> float:
    """Return the seconds from the first command to the end, or to the first right response."""
    began = time.perf_counter()
    *before, last = story.commands
    for command in before if story.url else story.commands:
        done = subprocess.run(
            command.split(), cwd=directory, env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchError(f"'{command}' failed:\n{(done.stdout + done.stderr)[-3000:]}")
    if story.url:
        with ServerProcess(Command(["env", *last.split()], log, environ, directory)) as server:
            while not _responds(story, expected):
                server.require_alive()
                if time.perf_counter() - began > _LIMIT_S:
                    raise BenchError(f"no response of '{last}':\n{server.log_tail()}")
                time.sleep(_PAUSE_S)
            return time.perf_counter() - began
    return time.perf_counter() - began


def _responds(story: Story, expected: bytes) -> bool:
    request = urllib.request.Request(
        story.url, story.body.encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            body: bytes = response.read()
    except (OSError, urllib.error.URLError):
        return False
    if expected not in body.replace(b" ", b""):
        raise BenchError(f"{story.url} responds {body[:500]!r}")
    return True


def _environ(server: Server, work: Path) -> dict[str, str]:
    uv = find_uv_bin()
    kept = os.environ | {
        "UV_CACHE_DIR": subprocess.check_output([uv, "cache", "dir"], text=True).strip(),
        # Nereid keeps environments of models there.
        "XDG_CACHE_HOME": str(work),
    }
    binaries = [Path(sys.executable).parent]
    if server.requirements:
        kept["VIRTUAL_ENV"] = str(_venv(server))
        kept["PYTHONPATH"] = ""
        # PyTriton's workers embed this Python.
        kept["LD_LIBRARY_PATH"] = sysconfig.get_config_var("LIBDIR")
        binaries = [_venv(server) / "bin", Path(uv).parent]
    return kept | {"PATH": os.pathsep.join([*map(str, binaries), kept["PATH"]])}


def _venv(server: Server) -> Path:
    return environment.CACHE / f"first-hour-{server.name}"


def _save_model(path: Path) -> None:
    float32 = onnx.TensorProto.FLOAT
    shape: list[str | int | None] = ["batch", 2]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "x"], ["y"])],
        "double",
        [onnx.helper.make_tensor_value_info("x", float32, shape)],
        [onnx.helper.make_tensor_value_info("y", float32, shape)],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


if __name__ == "__main__":
    sys.exit(main())
