"""Loaded models that instances on one device share, if several threads may use the models."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

from nereid.backends.file_digests import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LoadedModel = TypeVar("LoadedModel")


class SharedModels(Generic[LoadedModel]):
    """One model for each device and file (path and content). Any thread may use the object."""

    def __init__(self) -> None:
        self._models: WeakValueDictionary[tuple[str, bytes, str], LoadedModel] = (
            WeakValueDictionary()
        )
        self._lock = threading.Lock()

    def get_or_load(self, path: Path, device: str, load: Callable[[], LoadedModel]) -> LoadedModel:
        """Return the model that other instances already use, or the model that `load` returns."""
        key = (str(path), digest_of(path), device)
        with self._lock:
            model = self._models.get(key)
            if model is None:
                model = self._models[key] = load()
            return model
