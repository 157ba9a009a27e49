"""The recipes of docs/recipes: each file is written, each command is run, each output is compared.

In a page, a block whose first line is a comment with a path is that file. Blocks of `sh` run in
order; one that begins with `nereid serve` or `nereid run` starts the server, in place of the one
before. A block without a language is what the last command prints: `...` stands for anything, and
in pages that measure any number for any other.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.mesh.mesh import STOP_S, ask, free_port, until
from tests.support.pages import RECIPES, blocks, file_name

pytestmark = pytest.mark.slow

# Files of the server that is left behind, which only have to be Python.
_OTHERS = {"handler.py", "models.py", "service.py"}
# Exit status of `nereid perf` on a busy machine.
_NOT_STABLE = 5


@dataclass(frozen=True)
class Recipe:
    """How a page is run. measures: its numbers differ from run to run."""

    needs: tuple[str, ...] = ()
    measures: bool = False


PAGES = {
    "batching": Recipe(measures=True),
    "from-bentoml": Recipe(),
    "from-mlserver": Recipe(needs=("sklearn",)),
    "from-tf-serving": Recipe(needs=("onnx",)),
    "from-torchserve": Recipe(needs=("torch",)),
    "streaming": Recipe(needs=("tritonclient",)),
}
# The chart's tests render it (tests/support/chart/value_sets.py).
ELSEWHERE = {"kubernetes-s3"}


class Server:
    """The server of a page, at ports of the test's instead of the documented ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {"8000": free_port(), "8001": free_port(), "8002": free_port()}
        self._process: subprocess.Popen[bytes] | None = None

    def here(self, text: str) -> str:
        """Return the text with the test's ports."""
        for documented, port in self.ports.items():
            text = text.replace(f"localhost:{documented}", f"localhost:{port}")
        return text

    def start(self, command: str) -> None:
        self.stop()
        flags = zip(("http", "grpc", "metrics"), self.ports.values(), strict=True)
        argv = [*shlex.split(command), *(f"--{name}-port={port}" for name, port in flags)]
        argv[0] = str(Path(sys.executable).with_name(argv[0]))
        log = self.folder / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(argv, cwd=self.folder, stdout=output, stderr=output)
        self._process = process

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                return ask(f"localhost:{self.ports['8000']}", "/v2/health/ready")[0] == 200
            except OSError:
                return False

        until(is_ready, f"the server of {command!r}; its log: {log}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(STOP_S)
            self._process = None

    def run(self, command: str) -> str:
        """Run a block of commands; what it prints."""
        urls = self.here("-u localhost:8000 --metrics-url localhost:8002/metrics")
        command = self.here(command).replace("nereid perf", f"nereid perf --max-trials 3 {urls}")
        command = command.replace("nereid explain", f"nereid explain {urls}")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        result = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        accepted = {0, _NOT_STABLE} if "nereid perf" in command else {0}
        assert result.returncode in accepted, result.stdout + result.stderr
        return result.stdout


@contextmanager
def server_in(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.stop()


def expected(text: str, recipe: Recipe) -> re.Pattern[str]:
    """Return the pattern of a block that shows what a command prints."""
    pattern = re.escape(text.strip()).replace(r"\.\.\.", ".*?")
    if recipe.measures:
        pattern = re.sub(r"\d+(\\\.\d+)?", r"\\d+(\\.\\d+)?", pattern)
    return re.compile(pattern, re.DOTALL)


def test_every_recipe_is_run() -> None:
    assert {page.stem for page in RECIPES.glob("*.md")} == set(PAGES) | ELSEWHERE


@pytest.mark.parametrize("name", PAGES)
def test_a_recipe_does_what_it_shows(name: str, tmp_path: Path) -> None:
    recipe = PAGES[name]
    for module in recipe.needs:
        pytest.importorskip(module)
    printed, compared = "", 0
    with server_in(tmp_path) as server:
        for language, text in blocks(name):
            file = file_name(text)
            if file in _OTHERS:
                ast.parse(text)
            elif file:
                path = tmp_path / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(server.here(text))
            elif language == "sh" and text.startswith(("nereid serve", "nereid run")):
                server.start(text)
            elif language == "sh":
                printed = server.run(text)
            elif not language:
                assert expected(text, recipe).search(printed), printed
                compared += 1
    assert compared, "a recipe ends with what to see"
    if name == "batching":
        # The figures of the last `nereid explain`, after the change.
        assert rows_per_execution(printed) > 4


def rows_per_execution(explained: str) -> float:
    found = re.search(r"executions had ([\d.]+) rows on average", explained)
    assert found, explained
    return float(found[1])
