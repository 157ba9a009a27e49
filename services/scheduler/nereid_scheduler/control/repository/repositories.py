"""Reads model repositories: the models in them, with their versions and configurations.

File systems may be slow: once requests are served, call the methods in a thread.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import (
    INTERNAL_MESSAGE,
    Internal,
    InvalidArgument,
    NereidError,
    Unavailable,
)
from nereid.core.files.model_folders import may_be_model
from nereid.core.tensors.classification import read_labels
from nereid.model_config import (
    check_version_costs,
    complete_config,
    fill_backend,
    select_versions,
)
from nereid.model_config.overlays import ConfigFile, add_sources, read_config_files
from nereid.object_store.errors import StoreError
from nereid.pb import model_config_pb2 as config_pb
from nereid.text.files import LARGE
from nereid_scheduler.control.repository.config_files import ConfigFiles
from nereid_scheduler.control.repository.model_folder import (
    LocalFolder,
    find_export,
    refuse_package,
    refuse_stored_export,
    version_numbers,
)
from nereid_scheduler.core.models.dependencies import (
    is_ensemble,
    plain_name,
    qualified_name,
    resolve_steps,
    step_models,
)
from nereid_scheduler.core.models.found_model import FoundModel, NotUnique, NoVersion
from nereid_scheduler.core.models.overrides import parse_override, write_files
from nereid_scheduler.core.models.revision import CONFIG_FILE
from nereid_scheduler.placement.models.catalogue import FoundName
from nereid_scheduler.placement.models.config_completion import check_servable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid_scheduler.control.repository.model_folder import ModelFolder
    from nereid_scheduler.control.repository.stored_repository import StoredRepository
    from nereid_scheduler.core.models.overrides import Override, OverrideDirectory
    from nereid_scheduler.core.models.text_files import TextFiles

_log = logging.getLogger(__name__)

# Namespace of models whose files a load request brings. No repository has this name.
_OVERRIDES: Final = "load-request"
_EXPORTED_VERSION: Final = 1
# The event loop parses them.
_MAX_SMALL_BYTES: Final = 1 << 20
NOT_UNIQUE: Final = "model appears in two or more repositories"


class _Place(NamedTuple):
    """The folders of models with one name: more than one if the name is not unique."""

    plain_name: str
    namespace: str
    folders: list[ModelFolder]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Repositories:
    """Model repositories. With `namespacing`, each is a namespace and all names are qualified."""

    paths: Sequence[str]
    config_files: ConfigFiles = field(default_factory=ConfigFiles)
    namespacing: bool = False
    # Repositories in object stores. Key: a repository's path.
    stored: Mapping[str, StoredRepository] = field(default_factory=dict)
    # Reason why a repository's last listing failed. Key: the repository's path.
    problems: dict[str, str] = field(default_factory=dict)

    def names(self) -> dict[str, FoundName]:
        """Return the names of all models."""
        return {
            name: FoundName(
                place.plain_name, NOT_UNIQUE if len(place.folders) > 1 else "", place.problem
            )
            for name, place in self._places().items()
        }

    def scan(self) -> list[FoundModel]:
        """Return all models, sorted by name. A name that is not unique is refused."""
        places = self._places(all_files=True)
        return [self._read(name, places) for name in sorted(places)]

    def find(
        self,
        name: str,
        override: Override | None = None,
        versions: tuple[int, ...] | None = None,
    ) -> FoundModel | None:
        """Return a model as it is now, or as the override says; `None` if there is none.

        versions: those to serve, in place of those of the version policy.
        """
        if override is not None and override.files:
            return self._write_override(name, override)
        places = self._places_of(name)
        return self._read(name, places, override, versions) if name in places else None

    def require(
        self,
        name: str,
        override: Override | None = None,
        versions: tuple[int, ...] | None = None,
    ) -> FoundModel:
        """Return a model as `find` does. A model that is missing or unreadable has an error."""
        try:
            found = self.find(name, override, versions)
        except StoreError as error:
            found = FoundModel(name, error=Unavailable(error.text))
        except OSError as error:
            unreadable = Internal(f"a model repository cannot be read: {error.strerror}")
            found = FoundModel(name, error=unreadable)
        return found or FoundModel(name, error=Internal("there is no such model"))

    def plain_name(self, name: str) -> str:
        """Return the name by which clients know a model of this qualified name."""
        return name.rpartition("::")[2] if self.namespacing else name

    def outline(self, name: str, config: str) -> FoundModel:
        """Return the model that `config` describes, without files; may raise InvalidArgument."""
        namespace = _OVERRIDES if self.namespacing else ""
        found = FoundModel(plain_name(name, namespace), draft=parse_override(config))
        return self._in_namespace(found, namespace, {})

    def qualified_names(self, name: str, override: Override | None = None) -> list[str]:
        """Return the qualified names of the models that a load request names; there may be none."""
        if not self.namespacing:
            return [name]
        if override is not None and override.files:
            return [qualified_name(_OVERRIDES, name)]
        return [
            qualified for qualified, place in self._places().items() if place.plain_name == name
        ]

    def _places(self, *, all_files: bool = False) -> dict[str, _Place]:
        """Return the places of all models. `all_files`: list all objects of a store at once."""
        places: dict[str, _Place] = {}
        for repository in self.paths:
            namespace = repository if self.namespacing else ""
            folders = self._list(repository, all_files=all_files)
            problem = self.problems.get(repository, "")
            for plain, folder in folders.items():
                name = qualified_name(namespace, plain)
                place = places.setdefault(name, _Place(plain, namespace, [], problem))
                place.folders.append(folder)
        return places

    def _list(self, repository: str, *, all_files: bool) -> Mapping[str, ModelFolder]:
        stored, problem = self.stored.get(repository), ""
        models: Mapping[str, ModelFolder]
        try:
            if stored is None:
                found = filter(_is_model, Path(repository).iterdir())
                models = {path.name: LocalFolder(path) for path in found}
            else:
                models = stored.list_all() if all_files else stored.list_names()
                problem = stored.problem
        except OSError as error:
            self.problems[repository] = str(error)
            raise
        if problem:
            self.problems[repository] = problem
        else:
            self.problems.pop(repository, None)
        return models

    def _places_of(self, name: str) -> dict[str, _Place]:
        """Return the places that matter for one model. If possible, list no repositories."""
        if self.namespacing or self.stored:
            return self._places()
        paths = [Path(repository) / name for repository in self.paths]
        # The name comes from a client: it must not lead to a directory outside the repository.
        found: list[ModelFolder] = [
            LocalFolder(path) for path in paths if path.name == name and _is_model(path)
        ]
        # If nothing was found, a listing shows whether a repository cannot be read.
        return {name: _Place(name, "", found)} if found else self._places()

    def _write_override(self, name: str, override: Override) -> FoundModel:
        namespace = _OVERRIDES if self.namespacing else ""
        try:
            directory = write_files(override.files, override.directory)
        except NereidError as error:
            return FoundModel(name, error=error, namespace=namespace)
        except OSError as error:
            failed = Internal(f"failed to write the files of model '{name}': {error.strerror}")
            return FoundModel(name, error=failed, namespace=namespace)
        plain = plain_name(name, namespace)
        folder = LocalFolder(directory.path)
        found = _ModelReader(plain, folder, self.config_files, override).read(directory)
        return self._in_namespace(found, namespace, {})

    def _read(
        self,
        name: str,
        places: Mapping[str, _Place],
        override: Override | None = None,
        versions: tuple[int, ...] | None = None,
    ) -> FoundModel:
        plain, namespace, folders, _ = places[name]
        if len(folders) > 1:
            # Clients see this error: it contains no paths.
            return FoundModel(name, folders[0].path, error=NotUnique(NOT_UNIQUE))
        reader = _ModelReader(plain, folders[0], self.config_files, override, versions)
        found = reader.read()
        return self._in_namespace(found, namespace, places)

    def _in_namespace(
        self, found: FoundModel, namespace: str, places: Mapping[str, _Place]
    ) -> FoundModel:
        if is_ensemble(found.draft):
            having: dict[str, dict[str, None]] = {}
            for place in places.values():
                having.setdefault(place.plain_name, {})[place.namespace] = None
            resolve_steps(found.draft, namespace, having if self.namespacing else {})
            if self.namespacing and found.digest:
                found = replace(found, digest=_digest_with_steps(found))
        if not namespace:
            return found
        return replace(found, name=qualified_name(namespace, found.name), namespace=namespace)


def _digest_with_steps(found: FoundModel) -> bytes:
    """Return a digest that changes when a step's model moves to another repository."""
    digest = hashlib.blake2b(found.digest, digest_size=16)
    for name in step_models(found.draft):
        digest.update(name.encode() + b"\0")
    return digest.digest()


def _is_model(path: Path) -> bool:
    if not may_be_model(path.name):
        return False
    try:
        if not path.is_dir():
            return False
        path.name.encode()
    except OSError as error:
        _log.error("%s is not served: %s", path, error.strerror)
        return False
    except UnicodeEncodeError:
        _log.error("%r is not served: its name is not UTF-8", path)
        return False
    return True


def _small_files(texts: TextFiles) -> dict[str, bytes]:
    """Return the contents of files of text models, without those of large ones.

    If one is too large or unreadable, return none: the model can be served without them.
    """
    try:
        return {
            name: b"" if name in LARGE else texts.read_file(name, _MAX_SMALL_BYTES)
            for name in texts.states
        }
    except StoreError:
        # Another attempt may succeed.
        raise
    except OSError as error:
        _log.debug("no padding is added to an export: %s", error)
        return {}


class _ModelReader:
    def __init__(
        self,
        name: str,
        folder: ModelFolder,
        config_files: ConfigFiles,
        override: Override | None,
        versions: tuple[int, ...] | None = None,
    ) -> None:
        self._versions = versions
        self._name, self._folder = name, folder
        self._override = override
        self._config_files = config_files
        self._available: tuple[int, ...] = ()
        self._file_digests: dict[int, bytes] = {}
        # Contents by path, the lowest first.
        self._config_texts: dict[str, bytes] = {}
        self._sources: Mapping[str, str] = {}
        self._export = ""

    def read(self, directory: OverrideDirectory | None = None) -> FoundModel:
        error: NereidError
        draft = config_pb.ModelConfig()
        try:
            self._read_directory()
            draft = self._read_config()
            if self._versions is not None:
                # Without SetInParent(), a policy of no versions would be that of the latest.
                draft.version_policy.specific.SetInParent()
                draft.version_policy.specific.versions[:] = self._versions
            versions = select_versions(draft.version_policy, self._available)
            if not versions:
                raise NoVersion(
                    "at least one version must be available under the version policy of model"
                    f" '{self._name}'",
                    self._available,
                )
            check_version_costs(draft, len(versions))
            found = self._found(draft, versions, None, directory)
            if self._folder.url and is_ensemble(draft):
                labels = read_labels(draft, self._folder.path, self._folder.read)
                return replace(found, labels=labels)
            return found
        except NereidError as refused:
            error = refused
        except OSError as unreadable:
            file = f"{Path(unreadable.filename).name}: " if unreadable.filename else ""
            text = f"failed to read model '{self._name}': {file}{unreadable.strerror}"
            error = Internal(text)
        except Exception:
            _log.exception("model '%s' cannot be read", self._name)
            error = Internal(INTERNAL_MESSAGE)
        # The index shows the error at the latest version, since the version policy may be unknown.
        return self._found(config_pb.ModelConfig(), self._available[-1:], error, directory)

    def _found(
        self,
        draft: config_pb.ModelConfig,
        versions: tuple[int, ...],
        error: NereidError | None,
        directory: OverrideDirectory | None,
    ) -> FoundModel:
        digests = {number: self._file_digests.get(number, b"") for number in versions}
        digest = b"" if directory is not None else self._digest()
        folder = self._folder
        found = FoundModel(
            self._name, folder.path, draft, versions, digests, digest, error, directory
        )
        files = frozenset(folder.files)
        found = replace(
            found, url=folder.url, export=self._export, files=files, config_sources=self._sources
        )
        if error is not None:
            return found
        texts = {number: folder.text_files(self._export or str(number)) for number in versions}
        export_files = {}
        overlay = self._config_files.overlay
        if self._override is None and not any(
            text for path, text in self._config_texts.items() if path != overlay
        ):
            export_files = {number: _small_files(files) for number, files in texts.items()}
        return replace(found, text_files=texts, export_files=export_files)

    def _digest(self) -> bytes:
        digest = hashlib.blake2b(b"\0".join(self._config_texts.values()), digest_size=16)
        for number in self._available:
            digest.update(b"%d:%b" % (number, self._file_digests.get(number, b"")))
        if self._versions is not None:
            # A load that names no version then finds a change.
            digest.update(repr(self._versions).encode())
        return digest.digest()

    def _read_directory(self) -> None:
        if isinstance(self._folder, LocalFolder) and self._override is None:
            self._export = find_export(self._folder)
            if self._export:
                self._available = (_EXPORTED_VERSION,)
                self._file_digests = {_EXPORTED_VERSION: self._folder.digest_export(self._export)}
                self._read_texts(self._config_files.overlay)
                return
        self._available = tuple(version_numbers(self._folder.subfolders()))
        if not self._available and not self._folder.has_file(CONFIG_FILE):
            refuse_package(self._folder)
            refuse_stored_export(self._folder)
        # Make digests before the load: a file that is written during the load is then a change.
        for number in self._available:
            self._file_digests[number] = self._folder.digest(number)
        base = self._config_files.choose(self._folder.has_file)
        self._read_texts(base, self._config_files.overlay)

    def _read_texts(self, *paths: str) -> None:
        for path in filter(None, paths):
            with suppress(FileNotFoundError):
                self._config_texts[path] = self._folder.read(path)

    def _read_config(self) -> config_pb.ModelConfig:
        name = self._name
        if self._override is not None:
            draft = parse_override(self._override.config)
        else:
            overlay = self._config_files.overlay
            files = [
                ConfigFile(path, self._decode(path), path == overlay) for path in self._config_texts
            ]
            draft, self._sources = read_config_files(
                files, model_name=name, variables=self._config_files.variables
            )
        try:
            self._check(draft)
        except InvalidArgument as error:
            raise InvalidArgument(add_sources(error.message, self._sources)) from error
        return draft

    def _check(self, draft: config_pb.ModelConfig) -> None:
        name = self._name
        if draft.name and draft.name != name:
            raise InvalidArgument(
                f"unexpected directory name '{name}' for model '{draft.name}', directory name must"
                " equal model name"
            )
        fill_backend(draft, model_name=name, filenames=self._filenames())
        check_servable(draft)
        # Completing finds errors that do not depend on the model file.
        complete_config(draft, model_name=name, description=None)

    def _decode(self, path: str) -> str:
        try:
            return self._config_texts[path].decode()
        except UnicodeDecodeError as error:
            text = f"{path.rpartition('/')[2]} of model '{self._name}' is not UTF-8 text"
            raise InvalidArgument(text) from error

    def _filenames(self) -> list[str]:
        if not self._available:
            return []
        return self._folder.names_in(self._export or str(self._available[-1]))
