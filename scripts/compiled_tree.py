"""Copy the source tree, and compile the modules that are marked as compiled in the copy.

usage: compiled_tree.py DIRECTORY. Of an earlier copy in DIRECTORY, only the object files are used
again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Folders that are made here, and hold no source.
LEFT_OUT = shutil.ignore_patterns(".*cache", ".git", ".hypothesis", ".venv", "__pycache__", "build")


def main() -> None:
    """Copy the tree and compile the copy."""
    target = Path(sys.argv[1]).resolve()
    for earlier in target.iterdir() if target.exists() else ():
        if earlier.is_symlink() or earlier.is_file():
            earlier.unlink()
        elif earlier.name != "build":
            shutil.rmtree(earlier)
    shutil.copytree(ROOT, target, symlinks=True, ignore=LEFT_OUT, dirs_exist_ok=True)
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(command, cwd=target, env={**os.environ, "NEREID_COMPILE": "1"}, check=True)


if __name__ == "__main__":
    main()
