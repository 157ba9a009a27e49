"""A model as it was found in a repository."""

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


class NoVersion(InvalidArgument):
    """The model can be read, but its version policy selects none of its versions."""

    def __init__(self, message: str, available: Collection[int]) -> None:
        super().__init__(message)
        self.available = available

    @property
    def described_folder(self) -> str:
        """In its folder, for the log."""
        if not self.available:
            return "has no folder with a version's number"
        return f"has versions {', '.join(map(str, self.available))}"


class NotUnique(InvalidArgument):
    """Several repositories have a model of this name."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model directory. One with an error cannot be loaded, whether or not it has versions.

    name: with --model-namespacing its qualified name; namespace: that of its repository.
    draft: the configuration as written, with name and backend filled in.
    versions: those that the version policy selects; file_digests: of each one's files.
    digest: of the whole model, to notice changes; empty for one that is not in a repository.
    """

    name: str
    path: Path = field(default_factory=Path)
    draft: config_pb.ModelConfig = field(default_factory=config_pb.ModelConfig)
    versions: tuple[int, ...] = ()
    file_digests: dict[int, bytes] = field(default_factory=dict)
    digest: bytes = b""
    error: NereidError | None = None
    # Keeps a directory that was made for one load from being deleted.
    override_directory: OverrideDirectory | None = None
    namespace: str = ""
    # The only executors to load it, by their names; None: all.
    hosts: frozenset[str] | None = None
    # Of the model's directory in an object store; empty: it is at path.
    url: str = ""
    # Where its only version is in the directory, if that is an export; empty: in numbered folders.
    export: str = ""
    # Of an ensemble there; executors read those of other models.
    labels: Mapping[str, tuple[str, ...]] | None = None
    # What file_digests were made of; none in an object store.
    files: frozenset[FileState] = frozenset()

    @property
    def plain_name(self) -> str:
        """By which clients know it."""
        return plain_name(self.name, self.namespace)

    @property
    def exists(self) -> bool:
        """Whether there is a directory of this name."""
        return bool(self.path.name)

    def version_path(self, version: int) -> str:
        """The directory of one version, or its URL."""
        if self.url:
            return f"{self.url}/{version}"
        return str(self.path.absolute() / (self.export or str(version)))
