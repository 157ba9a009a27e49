"""What `nereid completion` prints, in the shells that are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nereid.cli.commands import GROUP, Command

ROOT = Path(__file__).parents[4]
COMMANDS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
# Words before the cursor, and what is offered in place of the last one.
CASES = (
    ("nereid", "p", {"perf"}),
    ("nereid serve", "--http-po", {"--http-port"}),
    ("nereid serve --log-format", "te", {"text"}),
    ("nereid perf", "--concurrency-r", {"--concurrency-range"}),
    ("nereid perf compare", "--roun", {"--rounds"}),
    ("nereid analyze", "prof", {"profile"}),
    ("nereid explain", "--metr", {"--metrics-url"}),
    ("nereid run", "--rel", {"--reload"}),
    ("nereid completion", "", {"bash", "zsh", "fish"}),
)
_BASH = """
source "$1"
COMP_WORDS=($2 "$3")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_shtab_nereid
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts of all shells, of the commands of this source tree."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "tree.dist-info").mkdir()
    lines = [f"[{GROUP}]", *(f"{name} = {place}" for name, place in COMMANDS.items())]
    (folder / "tree.dist-info" / "entry_points.txt").write_text("\n".join(lines))
    program = "import sys; from nereid.cli import main; main()"
    environ = dict(os.environ, PYTHONPATH=os.pathsep.join((str(folder), *filter(None, sys.path))))
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-c", program, "completion", shell]
        with (folder / shell).open("w") as file:
            subprocess.run(command, stdout=file, env=environ, check=True)
    return folder


def _completed(command: list[str]) -> set[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.partition("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize(("before", "word", "offered"), CASES)
def test_bash_completes_commands_flags_and_values(
    scripts: Path, before: str, word: str, offered: set[str]
) -> None:
    command = ["bash", "--norc", "-c", _BASH, "bash", str(scripts / "bash"), before, word]
    assert _completed(command) == offered


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(("before", "word", "offered"), CASES)
def test_fish_completes_commands_flags_and_values(
    scripts: Path, before: str, word: str, offered: set[str]
) -> None:
    program = f"source {scripts}/fish; complete -C '{before} {word}'"
    assert offered <= _completed(["fish", "--no-config", "-c", program])


def test_bash_completes_files_of_flags_and_arguments(scripts: Path) -> None:
    for before in ("nereid run", "nereid serve --model-repository", "nereid perf report"):
        command = ["bash", "--norc", "-c", _BASH, "bash", str(scripts / "bash"), before]
        assert _completed([*command, f"{scripts}/fi"]) == {f"{scripts}/fish"}


def test_zsh_has_all_commands_and_valid_syntax(scripts: Path) -> None:
    text = (scripts / "zsh").read_text()
    assert all(f"_shtab_nereid_{name.replace('-', '_')}_options=(" in text for name in COMMANDS)
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n", str(scripts / "zsh")], check=True)


@pytest.mark.parametrize(("name", "place"), COMMANDS.items())
def test_each_command_describes_its_flags(name: str, place: str) -> None:
    module, _, function = place.partition(":")
    parser = Command(name, module, function).make_parser()
    assert parser is not None
    assert len(parser._actions) > 1
