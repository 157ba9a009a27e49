"""Small wheels that need no index and no build."""

from __future__ import annotations

import tarfile
import zipfile
from io import BytesIO
from pathlib import Path


def save_wheel(
    folder: Path, name: str, version: str, code: str = "", requires: tuple[str, ...] = ()
) -> Path:
    """Write a wheel of one module with this code; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
    tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as file:
        for member, text in {
            f"{name}.py": code or f"VERSION = {version!r}\n",
            f"{info}/METADATA": metadata,
            f"{info}/WHEEL": tags,
            f"{info}/RECORD": "",
        }.items():
            # A fixed date, so that equal wheels have equal bytes.
            file.writestr(zipfile.ZipInfo(member), text)
    return path


def save_source(folder: Path, name: str, version: str, setup: str) -> Path:
    """Write a source distribution whose build runs this setup.py, by a backend of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    path, root = folder / f"{name}-{version}.tar.gz", f"{name}-{version}"
    project = '[build-system]\nrequires = []\nbuild-backend = "setup"\nbackend-path = ["."]\n'
    with tarfile.open(path, "w:gz") as file:
        for member, text in {
            "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "pyproject.toml": project,
            "setup.py": setup,
        }.items():
            entry = tarfile.TarInfo(f"{root}/{member}")
            entry.size = len(text.encode())
            file.addfile(entry, BytesIO(text.encode()))
    return path
