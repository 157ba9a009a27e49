"""The commands that installed distributions declare, and the `nereid` command that runs them."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import MetadataPathFinder
from pathlib import Path

import pytest

from nereid.cli import main
from nereid.cli.commands import GROUP, Command, declared_commands

ROOT = Path(__file__).parents[4]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]


def install(folder: Path, distribution: str, entry_points: str) -> None:
    """Write the metadata of a distribution, as installers do."""
    metadata = folder / distribution
    metadata.mkdir(parents=True)
    (metadata / "entry_points.txt").write_text(entry_points)
    (metadata / "METADATA").write_text(f"Name: {distribution.partition('-')[0]}\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder the whole import path, beside what is imported already."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    # Restored after run().
    monkeypatch.setattr(sys, "argv", sys.argv)
    return tmp_path


def run(*argv: str) -> object:
    sys.argv = ["nereid", *argv]
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize(("name", "value"), DECLARED.items())
def test_each_declared_command_can_be_loaded_and_has_a_summary(name: str, value: str) -> None:
    module, _, function = value.partition(":")
    command = Command(name, module, function)
    assert callable(command.load())
    assert command.summary()


def test_entry_points_are_read_as_importlib_reads_them(tmp_path: Path) -> None:
    text = """
[console_scripts]
a = a:main

[nereid.commands]
# x = x:main
first = package.module:main
second-one=package.other:run [extra]

[nereid.backends]
b = b:main
"""
    install(tmp_path, "one-1.0.dist-info", text)
    install(tmp_path, "two-1.0.dist-info", "[nereid.commands]\nthird = third:main\n")
    install(tmp_path, "three-1.0.dist-info", "[console_scripts]\nc = c:main\n")
    (tmp_path / "four-1.0.dist-info").mkdir()
    (tmp_path / "five.egg-info").touch()
    found = list(declared_commands([str(tmp_path / "nowhere"), str(tmp_path)]))
    assert found == [
        Command("first", "package.module", "main"),
        Command("second-one", "package.other", "run"),
        Command("third", "third", "main"),
    ]
    assert {(command.name, command.module, command.function) for command in found} == {
        (point.name, point.module, point.attr)
        for distribution in MetadataPathFinder.find_distributions(
            MetadataPathFinder.Context(path=[str(tmp_path)])
        )
        for point in distribution.entry_points.select(group=GROUP)
    }


def test_a_command_of_another_distribution(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(installed, "acme-1.0.dist-info", "[nereid.commands]\nacme = acme_nereid:run\n")
    (installed / "acme_nereid.py").write_text(
        'SUMMARY = "do it"\ndef run(argv):\n    print("did", *argv)\n    return 3\n'
    )
    assert run("--help") == 0
    assert "  nereid acme        do it\n" in capsys.readouterr().out
    assert "acme_nereid" not in sys.modules
    try:
        assert run("acme", "a", "--b") == 3
    finally:
        sys.modules.pop("acme_nereid", None)
    assert capsys.readouterr().out == "did a --b\n"


def test_commands_that_are_not_installed(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve") == 2
    printed = capsys.readouterr().err
    assert "unknown command 'serve'" in printed
    assert "no command is installed (no entry point of 'nereid.commands'" in printed
    assert "pip install --editable ." in printed
    # As in the image of one service.
    install(installed, "nereid_mesh-1.dist-info", "[nereid.commands]\nserve = nowhere.serve:main\n")
    assert run("--help") == 0
    printed_help = capsys.readouterr()
    assert "nereid serve" not in printed_help.out
    assert "no command is installed" in printed_help.err
    assert run("serve") == ("nereid serve: no module 'nowhere': pip install 'nereid-mesh[serve]'")


def test_the_list_of_commands_imports_none(tmp_path: Path) -> None:
    lines = [f"{name} = {value}" for name, value in DECLARED.items()]
    install(tmp_path, "nereid_mesh-1.dist-info", "\n".join([f"[{GROUP}]", *lines]))
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv[1:] = ['--help']\n"
        "import nereid.cli\n"
        "try:\n    nereid.cli.main()\n"
        "finally:\n    print('modules', *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    printed, _, modules = done.stdout.partition("modules ")
    assert all(f"  nereid {name} " in printed for name in DECLARED)
    assert not {value.partition(":")[0] for value in DECLARED.values()} & set(modules.split())


@pytest.mark.parametrize(
    ("body", "code", "printed"),
    [
        # As after `| head -1`: the reader has gone when more is printed, or when the program ends.
        ("for _ in range(100_000):\n            print('line')", 141, b""),
        ("print('line')", 141, b""),
        ("raise KeyboardInterrupt", 130, b""),
        ("raise SystemExit(3)", 3, b""),
    ],
)
def test_the_end_of_a_reader_or_an_interrupt_is_no_traceback(
    tmp_path: Path, body: str, code: int, printed: bytes
) -> None:
    install(tmp_path, "acme-1.0.dist-info", "[nereid.commands]\nacme = acme_nereid:run\n")
    (tmp_path / "acme_nereid.py").write_text(f"def run(argv):\n    if True:\n        {body}\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv[1:] = ['acme']\n"
        "from nereid.cli import main; main()\n"
    )
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=write_end, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (code, printed)
