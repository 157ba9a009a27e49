"""Records of how models were last loaded or unloaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import Internal

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL_PREFIX: Final = "model/"


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """Record of how a model was last loaded or unloaded."""

    # Qualified with --model-namespacing.
    name: str
    loaded: bool
    # False if the model was loaded only as a step of an ensemble.
    by_name: bool = True
    # Configuration of the override; `None` without one.
    config: str | None = None
    # Maps the path of a file of the override to its digest.
    files: Mapping[str, str] = field(default_factory=dict)
    # Why the override's files were not kept, so that the model cannot be loaded again.
    lost: str = ""
    # Where the scheduler has written the files for executors.
    directory: str = ""
    # Versions in service in place of those of the version policy; `None` if the policy says.
    versions: tuple[int, ...] | None = None

    @property
    def key(self) -> str:
        """Key of the record."""
        return model_key(self.name)

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the record."""
        return {
            "loaded": self.loaded,
            "by_name": self.by_name,
            "config": self.config,
            "files": dict(self.files),
            "lost": self.lost,
            "directory": self.directory,
            "versions": None if self.versions is None else list(self.versions),
        }

    def loss(self) -> Internal:
        """Return the error of a model whose files are lost."""
        return Internal(f"it was loaded with files that were not kept: {self.lost}")


def model_key(name: str) -> str:
    """Return the key of a model's record."""
    return MODEL_PREFIX + name
