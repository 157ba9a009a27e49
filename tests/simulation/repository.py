"""The model repository of a simulated mesh: a directory, whose files say which version they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.models import MODELS

if TYPE_CHECKING:
    from benchmarks.simulation.virtual_time import Clock

_BROKEN = b"this is no model ("


class SimulatedRepository:
    """Files have the times of the simulation, so that it does not matter how fast it runs."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self._clock = clock
        # The newest version of each edited model.
        self.versions = {each.name: 1 for each in MODELS if each.contract.is_edited}
        # By model and version: when it was written.
        self.written_s: dict[str, dict[int, float]] = {}

    def write(self) -> None:
        for model in MODELS:
            folder = self.directory / model.name
            (folder / "1").mkdir(parents=True)
            (folder / "config.pbtxt").write_text(model.text)
            self._write(model.name, b"1")

    def edit(self, name: str) -> None:
        """Write a model's next version over the last one."""
        version = self.versions[name] = self.versions[name] + 1
        self.written_s.setdefault(name, {})[version] = self._clock.now_ns / 1e9
        self._write(name, b"%d" % version)

    def break_file(self, name: str) -> None:
        """Write what cannot be loaded."""
        self._write(name, _BROKEN)

    def repair(self, name: str) -> None:
        """Write the newest version again."""
        self._write(name, b"%d" % self.versions[name])

    def _write(self, name: str, content: bytes) -> None:
        path = self.directory / name / "1" / "model.py"
        new = path.with_name("model.py.new")
        # Each version has a size of its own: changes are seen by times and sizes.
        size = self.versions.get(name, 1) if content != _BROKEN else 0
        new.write_bytes(content + b" " * size)
        os.utime(new, ns=(self._clock.now_ns, self._clock.now_ns))
        new.replace(path)


def version_at(version_path: str) -> int | None:
    """The version of the file that an instance loads from here; None: it cannot be loaded."""
    content = (Path(version_path) / "model.py").read_bytes().strip()
    return int(content) if content.isdigit() else None
