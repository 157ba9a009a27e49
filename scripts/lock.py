"""Locks the dependencies of images, users and tests, with hashes, in requirements/*.txt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# File by extras.
LOCKS = {
    "gateway": ("gateway", "jwt"),
    "scheduler": ("scheduler",),
    "cache": ("cache",),
    "executor": ("executor",),
    "serve": ("serve", "jwt", "examples"),
    "dev": ("dev",),
}


def main() -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "uv"], check=True)
    for name, extras in LOCKS.items():
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--upgrade"]
        command += ["--universal", "--python-version=3.11", "--generate-hashes", "--no-header"]
        command += [f"--extra={extra}" for extra in extras]
        command += ["pyproject.toml", f"--output-file=requirements/{name}.txt"]
        subprocess.run(command, cwd=ROOT, check=True)
        print(f"requirements/{name}.txt")


if __name__ == "__main__":
    main()
