"""Which form `make serve` starts, and how the compiled one comes to be."""

from pathlib import Path

import pytest

from scripts.serving_form import SOURCES, build, choose, digest_of, missing_tool

COPY = """
import shutil, sys
from pathlib import Path
root, work = Path(__file__).parents[1], Path(sys.argv[1])
shutil.rmtree(work, ignore_errors=True)
work.mkdir()
for name in ("nereid", "services", "plugins", "tools"):
    shutil.copytree(root / name, work / name)
(work / "nereid" / "a.so").write_text("compiled")
(work / "nereid__mypyc.so").write_text("compiled")
"""
FAIL = "import sys; print('gcc: no space left'); print(); sys.exit(1)"
CHANGE = "from pathlib import Path; (Path(__file__).parents[1] / 'nereid/a.py').write_text('b = 2')"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with a source."""
    for name in SOURCES:
        place = tmp_path / name
        if "." in name:
            place.parent.mkdir(exist_ok=True)
            place.write_text("")
        else:
            place.mkdir()
    (tmp_path / "nereid" / "a.py").write_text("a = 1")
    return tmp_path


def _build(root: Path, program: str) -> Path:
    compile_tree = root / "scripts" / "compile.py"
    compile_tree.write_text(program)
    folder = root / "build" / "serving"
    build(root, folder, compile_tree)
    return folder


def _needs_tools() -> None:
    if missing_tool():
        pytest.skip(missing_tool())


def test_the_compiled_form_is_what_the_next_start_uses(root: Path) -> None:
    _needs_tools()
    folder = root / "build" / "serving"
    tree, text, is_to_be_built = choose(root, folder)
    assert (tree, is_to_be_built) == (root, True)
    assert text.startswith("pure Python; the compiled form is built meanwhile")
    assert _build(root, COPY) == folder
    tree, text, is_to_be_built = choose(root, folder)
    assert (tree.parent, is_to_be_built) == (folder, False)
    assert text.startswith("the compiled form (")
    assert (tree / "nereid" / "a.so").exists()
    assert (tree / "nereid__mypyc.so").exists()
    # Changed sources run as they are, until they are compiled as well.
    (root / "nereid" / "a.py").write_text("a = 2")
    assert choose(root, folder)[0] == root


def test_a_failure_is_said_and_not_repeated(root: Path) -> None:
    folder = _build(root, FAIL)
    tree, text, is_to_be_built = choose(root, folder)
    assert (tree, is_to_be_built) == (root, False)
    assert "as compiling failed: gcc: no space left" in text
    assert "\n" not in text


def test_what_changes_while_it_is_compiled_is_not_kept(root: Path) -> None:
    folder = _build(root, CHANGE)
    assert not list(folder.glob("*.failed"))
    assert choose(root, folder)[0] == root


def test_the_digest_is_of_sources_alone(root: Path) -> None:
    before = digest_of(root)
    (root / "nereid" / "__pycache__").mkdir()
    (root / "nereid" / "__pycache__" / "a.pyc").write_text("x")
    (root / "README.md").write_text("x")
    assert digest_of(root) == before
    (root / "tools" / "b.py").write_text("x")
    assert digest_of(root) != before


def test_only_the_last_two_are_kept(root: Path) -> None:
    for number in range(4):
        (root / "nereid" / "a.py").write_text(f"a = {number}")
        folder = _build(root, COPY)
        if not missing_tool():
            assert choose(root, folder)[0].parent == folder
    assert len([each for each in folder.iterdir() if each.is_dir() and each.name != "work"]) == 2
