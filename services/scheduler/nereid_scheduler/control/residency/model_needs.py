"""Tells how many bytes models on demand need on each executor, and measures loaded models."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nereid.core.errors import InvalidArgument
from nereid_scheduler.core.instances.instance_places import gpu_ids
from nereid_scheduler.core.memory.sizes import ModelSizes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.placement.executors.sessions import Session


class ModelNeeds:
    """Sizes of the models, which are guessed from their files until they have been measured."""

    def __init__(self) -> None:
        self._sizes = ModelSizes()

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Use the sizes that an earlier scheduler has measured."""
        self._sizes = ModelSizes(saved)

    async def file_bytes(self, found: FoundModel) -> int:
        """Return the size of a model's files; 0 if the model has been measured."""
        if self._sizes.knows(found.name):
            return 0
        paths = [found.version_path(version) for version in found.versions]
        return await asyncio.to_thread(_file_bytes, paths)

    def needs(
        self, found: FoundModel, sessions: Collection[Session], file_bytes: int
    ) -> dict[str, dict[str, int]]:
        """Return the bytes that a model needs, by executor and device."""
        needs: dict[str, dict[str, int]] = {}
        versions = max(1, len(found.versions))
        for session in sessions:
            if found.draft.backend not in session.hello.backends:
                continue
            try:
                gpus = gpu_ids(session.hello)
                sizes = self._sizes.needs(found.name, found.draft, gpus, file_bytes // versions)
            except InvalidArgument:
                continue
            needs[session.name] = {device: size * versions for device, size in sizes.items()}
        # If no executor fits, the load itself reports what is wrong with the configuration.
        return needs or {session.name: {} for session in sessions}

    def measured(self, name: str, memory: Mapping[str, Mapping[str, Iterable[int]]]) -> bool:
        """Store what a model's instances take, by executor and device; return whether it is new."""
        by_device: dict[str, list[int]] = {}
        for devices in memory.values():
            for device, sizes in devices.items():
                by_device.setdefault(device, []).extend(sizes)
        return self._sizes.measured(name, by_device)

    def saved(self) -> dict[str, dict[str, int]]:
        """Return the sizes in the form in which the scheduler's state keeps them."""
        return self._sizes.saved()


def _file_bytes(versions: Iterable[str]) -> int:
    total = 0
    for version in versions:
        for directory, _, names in os.walk(version):
            for name in names:
                try:
                    total += (Path(directory) / name).stat().st_size
                except OSError:
                    continue
    return total
