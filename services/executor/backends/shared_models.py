"""Loaded models that several instances on one device share, for as long as one of them uses it.

For modules and engines that several threads may use at the same time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LoadedModel = TypeVar("LoadedModel")


class SharedModels(Generic[LoadedModel]):
    """One model for each file (by path, time and size) and device; may be used from any thread."""

    def __init__(self) -> None:
        self._models: WeakValueDictionary[tuple[str, int, int, str], LoadedModel] = (
            WeakValueDictionary()
        )
        self._lock = threading.Lock()

    def get_or_load(self, path: Path, device: str, load: Callable[[], LoadedModel]) -> LoadedModel:
        """The model that another instance uses, or what `load` returns."""
        state = path.stat()
        key = (str(path), state.st_mtime_ns, state.st_size, device)
        with self._lock:
            model = self._models.get(key)
            if model is None:
                model = self._models[key] = load()
            return model
