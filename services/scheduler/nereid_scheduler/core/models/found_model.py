"""A model as it was found in a repository, with the data that are needed to load it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid.pb import model_config_pb2 as config_pb
from nereid_scheduler.core.models.dependencies import plain_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nereid.core.errors import NereidError
    from nereid_scheduler.core.models.overrides import OverrideDirectory
    from nereid_scheduler.core.models.revision import FileState
    from nereid_scheduler.core.models.text_files import TextFiles


class NoVersion(InvalidArgument):
    """Error of a model whose version policy selects none of its versions."""

    def __init__(self, message: str, available: Collection[int]) -> None:
        super().__init__(message)
        self.available = available

    @property
    def described_folder(self) -> str:
        """Text for the log about the versions in the model's folder."""
        if not self.available:
            return "has no folder with a version's number"
        return f"has versions {', '.join(map(str, self.available))}"


class NotUnique(InvalidArgument):
    """Error for a model name that exists in several repositories."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """Model in a repository. If it has an error, it cannot be loaded, with or without versions."""

    # Qualified with --model-namespacing.
    name: str
    path: Path = field(default_factory=Path)
    # Configuration file, with name and backend filled in.
    draft: config_pb.ModelConfig = field(default_factory=config_pb.ModelConfig)
    versions: tuple[int, ...] = ()
    file_digests: dict[int, bytes] = field(default_factory=dict)
    # Changes with the model; empty if no repository has the model.
    digest: bytes = b""
    error: NereidError | None = None
    # Keeps the directory of an override for one load from being deleted.
    override_directory: OverrideDirectory | None = None
    namespace: str = ""
    # The only executors that load the model; `None` means all.
    hosts: frozenset[str] | None = None
    # Directory in an object store; empty if the model is at `path`.
    url: str = ""
    # Path of an export's only version; empty if versions have numbered folders.
    export: str = ""
    # Labels of an ensemble in an object store; executors read the labels of other models.
    labels: Mapping[str, tuple[str, ...]] | None = None
    # Files from which `file_digests` was computed; empty for an object store.
    files: frozenset[FileState] = frozenset()
    # Key: a version.
    text_files: Mapping[int, TextFiles] = field(default_factory=dict)
    # File and line by the path of a field, if the configuration has several files or variables.
    config_sources: Mapping[str, str] = field(default_factory=dict)
    # Files of text models by version, if there is no config.pbtxt. Tokenizers are empty here.
    export_files: Mapping[int, Mapping[str, bytes]] = field(default_factory=dict)

    @property
    def plain_name(self) -> str:
        """Name by which clients know the model."""
        return plain_name(self.name, self.namespace)

    @property
    def exists(self) -> bool:
        """True if a repository has a directory of this name."""
        return bool(self.path.name)

    def version_path(self, version: int) -> str:
        """Return the directory of one version, or its URL."""
        if self.url:
            return f"{self.url}/{version}"
        return str(self.path.absolute() / (self.export or str(version)))
