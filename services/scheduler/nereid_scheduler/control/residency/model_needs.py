"""Tells how many bytes a model on demand needs on each executor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid_scheduler.core.instances.instance_places import gpu_ids

if TYPE_CHECKING:
    from collections.abc import Collection

    from nereid_scheduler.core.memory.sizes import ModelSizes
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.placement.executors.sessions import Session


def model_needs(
    found: FoundModel, sizes: ModelSizes, sessions: Collection[Session], file_bytes: int
) -> dict[str, dict[str, int]]:
    """Return the bytes that a model needs, by executor and device. file_bytes: its files."""
    needs: dict[str, dict[str, int]] = {}
    versions = max(1, len(found.versions))
    for session in sessions:
        if found.draft.backend not in session.hello.backends:
            continue
        try:
            gpus = gpu_ids(session.hello)
            own = sizes.needs(found.name, found.draft, gpus, file_bytes // versions)
        except InvalidArgument:
            continue
        needs[session.name] = {device: size * versions for device, size in own.items()}
    # If no executor fits, the load itself reports what is wrong with the configuration.
    return needs or {session.name: {} for session in sessions}


def read_file_bytes(found: FoundModel) -> int:
    """Return the size of a model's files."""
    total = 0
    for version in found.versions:
        for directory, _, names in os.walk(found.version_path(version)):
            for name in names:
                try:
                    total += (Path(directory) / name).stat().st_size
                except OSError:
                    continue
    return total
