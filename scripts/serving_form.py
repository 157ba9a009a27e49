"""Choose the form of the code that `make serve` starts: compiled if it is built, else pure Python.

usage: serving_form.py [--root DIRECTORY] prints the value of PYTHONPATH for the form, and on
standard error one line that says which it is. If the compiled form of these sources is not built
yet, and there are a C compiler and Python's headers, it is built in the background, with nice: the
next start uses it. It is kept in build/serving, by a digest of the sources.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.source_tree import source_path

ROOT: Final = Path(__file__).resolve().parents[1]
# What decides how the code runs, compiled or not.
SOURCES: Final = (
    *("nereid", "services", "plugins", "tools"),
    *("setup.py", "pyproject.toml", "requirements/build.txt", "scripts/compiled_tree.py"),
)
_NICE: Final = 19


def digest_of(root: Path) -> str:
    """Return the digest of the sources and of the Python that compiles them."""
    digest = hashlib.sha256(f"{sys.implementation.cache_tag} {sysconfig.get_platform()}".encode())
    for name in SOURCES:
        place = root / name
        paths = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in paths:
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so":
                content = path.read_bytes()
                head = f"{path.relative_to(root)} {len(content)} "
                digest.update(head.encode() + content)
    return digest.hexdigest()[:16]


def missing_tool() -> str:
    """Return what is missing to compile, or ""."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers are missing (python3-dev)"
    return "" if find_spec("mypyc") else "mypyc is missing (make install)"


def choose(root: Path, folder: Path) -> tuple[Path, str, bool]:
    """Return the tree to run, a line about it, and whether the compiled form is to be built."""
    digest = digest_of(root)
    built, failure = folder / digest, folder / f"{digest}.failed"
    if built.is_dir():
        return built, f"the compiled form ({built})", False
    if failure.exists():
        why = failure.read_text().strip()
        text = f"pure Python, as compiling failed: {why}; {failure} keeps it from being tried again"
        return root, text, False
    why = missing_tool()
    if why:
        return root, f"pure Python, as {why}", False
    text = (
        "pure Python; the compiled form is built meanwhile (about a minute,"
        f" {folder / 'log'}), and the next start uses it"
    )
    return root, text, True


def build(root: Path, folder: Path, compile_tree: Path) -> None:
    """Build the compiled form, unless another process is building it; keep it or its error."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        digest, work = digest_of(root), folder / "work"
        with (folder / "log").open("w") as log:
            command = [sys.executable, str(compile_tree), str(work)]
            done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        if digest_of(root) != digest:
            # The sources have changed meanwhile, so nobody knows what was compiled.
            return
        if done.returncode:
            lines = (folder / "log").read_text(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "no output")
            (folder / f"{digest}.failed").write_text(f"{last.strip()}\n")
            return
        _keep(work, folder, digest)


def _keep(work: Path, folder: Path, digest: str) -> None:
    """Copy what runs to the folder of its digest; remove all others but the one before."""
    earlier = sorted(
        (each for each in folder.iterdir() if each.is_dir() and each != work),
        key=lambda each: each.stat().st_mtime,
    )
    # A mesh that runs may still use the newest.
    for each in earlier[:-1]:
        shutil.rmtree(each)
    part = folder / f"{digest}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for name in (*SOURCES[:4], "pyproject.toml"):
        place = work / name
        if place.is_dir():
            shutil.copytree(place, part / name)
        elif place.exists():
            shutil.copy2(place, part / name)
    # The module that holds the compiled code of all stands at the top of the tree.
    for path in work.glob("*.so"):
        shutil.copy2(path, part / path.name)
    part.rename(folder / digest)


def main() -> None:
    """Print the value of PYTHONPATH and the line, and start the build if there is to be one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", action="store_true", help="build now, in this process")
    given = parser.parse_args()
    root: Path = given.root
    folder = root / "build" / "serving"
    if given.build:
        os.nice(_NICE)
        build(root, folder, root / "scripts" / "compiled_tree.py")
        return
    tree, text, is_to_be_built = choose(root, folder)
    sys.stderr.write(f"make serve: {text}\n")
    sys.stdout.write(f"{source_path(tree)}\n")
    sys.stdout.flush()
    if is_to_be_built:
        subprocess.Popen(
            [sys.executable, __file__, "--build", "--root", str(root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C ends the mesh, not the build.
            start_new_session=True,
        )


if __name__ == "__main__":
    main()
