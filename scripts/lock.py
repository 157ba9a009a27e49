"""Lock the dependencies of images, users and tests, with hashes, in requirements/*.txt.

usage: lock.py [--upgrade] [NAME ...]

Versions that are already locked are kept. --upgrade takes the newest version of everything. NAME is
the name of a file in requirements, and limits the script to this file.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Extras of each file.
LOCKS = {
    "dev": ("dev",),
    "build": ("build",),
    "gateway": ("gateway", "jwt"),
    "scheduler": ("scheduler",),
    "cache": ("cache",),
    "executor": ("executor", "packages"),
    "executor-openvino": ("executor", "openvino", "packages"),
    "executor-gpu": ("cuda", "packages"),
    "serve": ("serve", "jwt", "examples"),
    "serve-image": ("serve", "jwt", "packages"),
    "serve-image-gpu": ("gateway", "scheduler", "cache", "cuda", "jwt", "packages"),
    "fuzz": ("fuzz",),
    "chart": ("chart",),
    "supply": ("supply",),
    "docs": ("docs",),
    "text-clients": ("text-clients",),
    "aiperf": ("aiperf",),
}
# These are installed beside what dev.txt installs: no version may differ.
BESIDE_DEV = {"build", "fuzz", "chart"}
# Packages of others that fetch models.
FETCHES_MODELS = {"text-clients", "aiperf"}


def main() -> None:
    """Lock the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parser.add_argument("name", nargs="*", help=f"of {', '.join(LOCKS)}; none: all")
    given = parser.parse_args()
    for name in given.name or LOCKS:
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"]
        command += ["--python-version=3.11", "--generate-hashes", "--no-header"]
        command += [f"--extra={extra}" for extra in LOCKS[name]]
        command += ["pyproject.toml", f"--output-file=requirements/{name}.txt"]
        command += ["--upgrade"] if given.upgrade else []
        command += ["--constraint=requirements/dev.txt"] if name in BESIDE_DEV else []
        command += [] if name in FETCHES_MODELS else ["--override=requirements/overrides.txt"]
        subprocess.run(command, cwd=ROOT, check=True)
        print(f"requirements/{name}.txt")


if __name__ == "__main__":
    main()
