"""The same flags in every command, and what a command does without its extra."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nereid.cli.commands import GROUP

ROOT = Path(__file__).parents[4]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
TOOLS = ("analyze", "check", "doctor", "explain", "perf", "timeline")
ASKS_A_SERVER = ("analyze", "doctor", "explain", "perf", "timeline")
# What `pip install .` brings without an extra.
PLAIN = "hpack google mypy_extensions librt prometheus_client uvloop"
_START = f"""
import sys
from importlib.machinery import PathFinder

class Plain:
    "Finds the packages of a plain installation alone."
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target)
        outside = spec is not None and "site-packages" in (spec.origin or "")
        plain = name.partition(".")[0] in {PLAIN.split()!r}
        return None if outside and not plain else spec

sys.meta_path[:] = [finder for finder in sys.meta_path[:2]] + [Plain]
import nereid.cli
from nereid.cli.commands import Command
"""


def _printed(program: str, *argv: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *argv], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def _help(name: str, flag: str) -> str:
    code, out, _ = _printed("from nereid.cli import main; main()", name, flag)
    assert code == 0
    return out


@pytest.mark.parametrize("name", TOOLS)
def test_the_common_flags_have_the_same_names(name: str) -> None:
    text = _help(name, "--help-all")
    wanted = ["-m", "--model", "--verbose"]
    if name in ASKS_A_SERVER:
        wanted += ["-u", "--url", "-i", "--protocol", "-H", "--header"]
    if name != "analyze":
        wanted.append("--json")
    for flag in wanted:
        assert re.search(rf"(?<![\w-]){flag}(?![\w-])", text), (name, flag)


@pytest.mark.parametrize("name", TOOLS)
def test_help_is_shorter_than_help_all(name: str) -> None:
    assert len(_help(name, "--help")) < len(_help(name, "--help-all")) < 20_000


@pytest.mark.parametrize(("name", "place"), DECLARED.items())
def test_without_extras_each_command_works_or_names_its_extra(name: str, place: str) -> None:
    command = f"nereid.cli.find_command = lambda name: Command(name, *{place.split(':')})\n"
    program = f"{_START}{command}nereid.cli.main()"
    code, out, errors = _printed(program, name, "--help-all")
    assert "Traceback" not in errors
    if code or "usage" not in out:
        assert re.fullmatch(r"nereid [\w-]+: .*'nereid-mesh\[\w+\]'.*\n", errors), errors
