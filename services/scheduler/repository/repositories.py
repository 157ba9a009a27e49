"""Model repositories on disk: which models there are, their versions, what their files say.

The only place of the scheduler that reads models' files; once requests are served it is called
beside the event loop, since a file system may be slow. What cannot be used is reported with its
reason and never stops the rest.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.core.errors import INTERNAL_MESSAGE, Internal, InvalidArgument, NereidError
from nereid.model_config import complete_config, fill_backend, parse_config, select_versions
from nereid.pb import model_config_pb2 as config_pb
from nereid.services.scheduler.models.config_completion import check_servable
from nereid.services.scheduler.models.dependencies import is_ensemble
from nereid.services.scheduler.repository.overrides import FileOverride, parse_override, write_files
from nereid.services.scheduler.repository.revision import CONFIG_FILE, CONFIG_FOLDER, files_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.services.scheduler.repository.overrides import Override

_log = logging.getLogger(__name__)

_LARGEST_VERSION: Final = (1 << 63) - 1


class NoVersion(InvalidArgument):
    """The model can be read, but none of its versions is to be served."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model directory. With an error it cannot be loaded, whether or not it has versions.

    draft is the configuration as far as it is written, with name and backend set. versions are
    those that its version policy asks for, files what tells the state of each one's files. origin
    tells the state of all that lies in the repository; empty: nothing there counts.
    """

    name: str
    path: Path = field(default_factory=Path)
    draft: config_pb.ModelConfig = field(default_factory=config_pb.ModelConfig)
    versions: tuple[int, ...] = ()
    files: dict[int, bytes] = field(default_factory=dict)
    origin: bytes = b""
    error: NereidError | None = None
    # Keeps the directory, where it was made for one load.
    keeper: FileOverride | None = None

    def version_path(self, version: int) -> str:
        """The directory of one version."""
        return str(self.path.absolute() / str(version))


@dataclass(frozen=True, slots=True)
class Repositories:
    """The repositories, and the name of the configuration that is preferred in each model."""

    paths: Sequence[str]
    config_name: str = ""

    def names(self) -> list[str]:
        """The models that there are."""
        return sorted(self._places())

    def scan(self) -> list[FoundModel]:
        """All models by name. A name in two repositories is refused in both."""
        return [self._read(name, places) for name, places in sorted(self._places().items())]

    def find(self, name: str, override: Override | None = None) -> FoundModel | None:
        """One model as it is now, or as it shall be loaded instead; None: there is none."""
        if override is not None and override.files:
            return self._substitute(name, override)
        places = self._places().get(name)
        if places is None:
            return None
        return self._read(name, places, override)

    def _places(self) -> dict[str, list[Path]]:
        places: dict[str, list[Path]] = {}
        for repository in self.paths:
            for path in Path(repository).iterdir():
                if _is_model(path):
                    places.setdefault(path.name, []).append(path)
        return places

    def _substitute(self, name: str, override: Override) -> FoundModel:
        """A model that consists of what a load brought along, and of nothing else."""
        try:
            keeper = write_files(override.files)
        except NereidError as error:
            return FoundModel(name, error=error)
        except OSError as error:
            failed = Internal(f"failed to write the files of model '{name}': {error.strerror}")
            return FoundModel(name, error=failed)
        return _Reading(name, keeper.path, self.config_name, override).read(keeper)

    def _read(
        self, name: str, places: Sequence[Path], override: Override | None = None
    ) -> FoundModel:
        if len(places) > 1:
            where = ", ".join(f"'{place.parent}'" for place in places)
            text = f"model '{name}' is in more than one model repository: {where}"
            return FoundModel(name, places[0], error=InvalidArgument(text))
        return _Reading(name, places[0], self.config_name, override).read()


def _is_model(path: Path) -> bool:
    # .git, .ipynb_checkpoints and the like are nobody's models.
    if path.name.startswith("."):
        return False
    try:
        if not path.is_dir():
            return False
        path.name.encode()
    except OSError as error:
        _log.error("%s is left out: %s", path, error.strerror)
        return False
    except UnicodeEncodeError:
        _log.error("%r is left out: its name is not UTF-8", path)
        return False
    return True


class _Reading:
    """One model directory while it is read."""

    def __init__(self, name: str, path: Path, config_name: str, override: Override | None) -> None:
        self._name, self._path = name, path
        self._override = override
        self._config = path / CONFIG_FILE
        if config_name:
            custom = path / CONFIG_FOLDER / f"{config_name}.pbtxt"
            self._config = custom if custom.is_file() else self._config
        self._available: tuple[int, ...] = ()
        self._files: dict[int, bytes] = {}
        self._text = b""

    def read(self, keeper: FileOverride | None = None) -> FoundModel:
        error: NereidError
        draft = config_pb.ModelConfig()
        try:
            self._look()
            draft = self._draft()
            versions = select_versions(draft.version_policy, self._available)
            if not versions:
                raise NoVersion(
                    "at least one version must be available under the version policy of model"
                    f" '{self._name}'"
                )
            return self._found(draft, versions, None, keeper)
        except NereidError as refused:
            error = refused
        except OSError as unreadable:
            error = Internal(f"failed to read model '{self._name}': {unreadable.strerror}")
        except Exception:
            _log.exception("model '%s' cannot be read", self._name)
            error = Internal(INTERNAL_MESSAGE)
        # Only the latest has to tell the reason: which versions were meant may be unknown.
        return self._found(config_pb.ModelConfig(), self._available[-1:], error, keeper)

    def _found(
        self,
        draft: config_pb.ModelConfig,
        versions: tuple[int, ...],
        error: NereidError | None,
        keeper: FileOverride | None,
    ) -> FoundModel:
        files = {number: self._files.get(number, b"") for number in versions}
        origin = b"" if keeper is not None else self._origin()
        return FoundModel(self._name, self._path, draft, versions, files, origin, error, keeper)

    def _origin(self) -> bytes:
        digest = hashlib.blake2b(self._text, digest_size=16)
        for number in self._available:
            digest.update(b"%d:%b" % (number, self._files.get(number, b"")))
        return digest.digest()

    def _look(self) -> None:
        """Directories whose names are whole numbers without a leading zero; all else is ignored."""
        names = [place.name for place in self._path.iterdir() if place.is_dir()]
        numbers = (int(n) for n in names if n.isascii() and n.isdigit() and str(int(n)) == n)
        self._available = tuple(sorted(number for number in numbers if number <= _LARGEST_VERSION))
        # Before anybody loads it: what is written meanwhile shall be seen as a change next time.
        for number in self._available:
            self._files[number] = files_of(str(self._path.absolute() / str(number)))
        try:
            self._text = self._config.read_bytes()
        except FileNotFoundError:
            self._text = b""

    def _draft(self) -> config_pb.ModelConfig:
        name = self._name
        if self._override is not None:
            draft = parse_override(self._override.config)
        else:
            try:
                draft = parse_config(self._text.decode(), model_name=name)
            except UnicodeDecodeError as error:
                text = f"{self._config.name} of model '{name}' is not UTF-8 text"
                raise InvalidArgument(text) from error
        if draft.name and draft.name != name:
            raise InvalidArgument(
                f"unexpected directory name '{name}' for model '{draft.name}', directory name must"
                " equal model name"
            )
        fill_backend(draft, model_name=name, filenames=self._filenames())
        check_servable(draft)
        if is_ensemble(draft):
            # No file tells more of it than is written here.
            complete_config(draft, model_name=name, description=None)
        return draft

    def _filenames(self) -> list[str]:
        """What is in the latest version's directory: it may be all that tells the backend."""
        if not self._available:
            return []
        return [place.name for place in (self._path / str(self._available[-1])).iterdir()]
