"""Model repository of multi-model mode, on disk. Calls block.

A model's folder in the repository has links to the archive's files, and a configuration of its own.
In it, the model that serves the archive has the platform's name for the archive, and the steps of
an ensemble have unique names. A hidden folder has a record of each archive, which all gateways
read.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from google.protobuf import text_format

from nereid.core.errors import AlreadyExists, InvalidArgument, NotFound
from nereid.core.files.regular_files import read_regular_file
from nereid.core.known_backends import ENSEMBLE_PLATFORM
from nereid.model_config import parse_config
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONFIG: Final = "config.pbtxt"
_RECORDS: Final = ".sagemaker"
_MAX_NAME_LENGTH: Final = 200
# An archive has an ensemble and its steps.
_MAX_MODELS: Final = 256


@dataclass(frozen=True)
class Archive:
    """Archive whose models are in the repository.

    key: the platform's name for it. model: the model that serves it, which is also in `models`.
    url: its directory, as the platform sees it.
    """

    key: str
    model: str
    models: tuple[str, ...]
    url: str


def check_key(key: str) -> str:
    """Return key unchanged, or raise InvalidArgument if it cannot be part of a target."""
    if not is_plain(key):
        raise InvalidArgument(
            f"model_name '{key[:_MAX_NAME_LENGTH]}' cannot be served: it must be of letters, digits"
            " and -_.=+~@ and may not begin with a dot"
        )
    return key


def model_name(key: str, target_model: str) -> str:
    """Return the name that the platform's clients use, or the key if it is not a model's name."""
    return target_model if is_plain(target_model) else key


def is_plain(name: str) -> bool:
    """Return whether a text is valid as the name of a model and a folder, and in a target."""
    return (
        0 < len(name) <= _MAX_NAME_LENGTH
        and name[0] != "."
        and name.isascii()
        and all(character.isalnum() or character in "-_.=+~@" for character in name)
    )


class Archives:
    """Archives whose models are in one repository."""

    def __init__(self, repository: Path, root: Path) -> None:
        """Keep the repository. Archives must lie below root."""
        self._repository = repository
        self._root = root

    def find(self, key: str) -> Archive:
        """Return the archive that is recorded under a key, or raise NotFound."""
        if is_plain(key):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                document = json.loads(self._record(key).read_bytes())
                return Archive(**(document | {"models": tuple(document["models"])}))
        raise NotFound(f"model '{key}' is not loaded")

    def all(self) -> list[Archive]:
        """Return all recorded archives in the order of their keys."""
        try:
            names = sorted(record.name for record in (self._repository / _RECORDS).iterdir())
        except FileNotFoundError:
            return []
        archives = []
        for name in names:
            try:
                archives.append(self.find(name))
            except NotFound:
                continue
        return archives

    def add(self, key: str, url: str, target_model: str) -> Archive:
        """Add the models of the archive at url to the repository, and record the archive.

        Raises AlreadyExists if a model's name is taken, InvalidArgument if the archive is missing
        or cannot be served, and OSError.
        """
        directory = self._directory(url)
        name = model_name(key, target_model)
        configs = _read_models(directory)
        top = _top_model(configs)
        # If the archive itself is a model, the platform sees the parent directory, as on Triton.
        shown = str(directory if top else directory.parent)
        names = {folder: name if folder == top else f"{name}.{folder}" for folder in configs}
        archive = Archive(key, name, (name, *sorted(set(names.values()) - {name})), shown)
        made: list[Path] = []
        try:
            for folder, config in configs.items():
                place = self._repository / names[folder]
                place.mkdir()
                made.append(place)
                _fill(place, directory / folder, _renamed(config, names, folder))
            (self._repository / _RECORDS).mkdir(exist_ok=True)
            record = self._record(key)
            unfinished = record.with_name(f".{record.name}")
            unfinished.write_text(json.dumps(asdict(archive)))
            unfinished.replace(record)
        except FileExistsError as error:
            _remove(made)
            raise AlreadyExists(
                f"the model repository has a model '{Path(error.filename).name}' already"
            ) from error
        except BaseException:
            _remove(made)
            raise
        return archive

    def remove(self, archive: Archive) -> None:
        """Remove the models and the record of an archive from the repository."""
        self._record(archive.key).unlink(missing_ok=True)
        _remove([self._repository / name for name in archive.models])

    def _record(self, key: str) -> Path:
        return self._repository / _RECORDS / quote(key, safe="")

    def _directory(self, url: str) -> Path:
        root = self._root.resolve()
        # Links are resolved, so that the directory they point to is checked.
        directory = Path(url).resolve()
        if not directory.is_relative_to(root) or directory == root:
            raise InvalidArgument(f"url '{url}' is not below {root}")
        if not directory.is_dir():
            raise InvalidArgument(f"url '{url}': there is no such directory")
        return directory


def _read_models(directory: Path) -> dict[str, model_config_pb2.ModelConfig]:
    """Return an archive's configurations by folder, where "" is the archive's own folder."""
    folders = sorted(path.name for path in directory.iterdir() if _is_folder(path))
    if (directory / _CONFIG).is_file() or any(folder.isdigit() for folder in folders):
        folders = [""]
    if len(folders) > _MAX_MODELS:
        raise InvalidArgument(f"the archive has more than {_MAX_MODELS} models")
    if not folders:
        raise InvalidArgument("the archive has neither a configuration nor a folder of a model")
    return {folder: _read_config(directory / folder, folder) for folder in folders}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and is_plain(path.name)


def _read_config(folder: Path, name: str) -> model_config_pb2.ModelConfig:
    try:
        text = read_regular_file(folder / _CONFIG).decode()
    except FileNotFoundError:
        return model_config_pb2.ModelConfig()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{_CONFIG} of model '{name}' is not UTF-8 text") from error
    return parse_config(text, model_name=name)


def _steps(config: model_config_pb2.ModelConfig) -> set[str]:
    return {step.model_name for step in config.ensemble_scheduling.step}


def _top_model(configs: Mapping[str, model_config_pb2.ModelConfig]) -> str:
    """Return the folder of the only model, or of the ensemble that has all others as steps."""
    if len(configs) == 1:
        return next(iter(configs))
    ensembles = {name for name, config in configs.items() if config.platform == ENSEMBLE_PLATFORM}
    nested = {step for config in configs.values() for step in _steps(config)}
    tops = sorted(ensembles - nested)
    if len(tops) != 1:
        raise InvalidArgument(
            f"the archive has the models {', '.join(sorted(configs))}, of which not just one is an"
            " ensemble of others"
        )
    return tops[0]


def _renamed(
    config: model_config_pb2.ModelConfig, names: Mapping[str, str], folder: str
) -> model_config_pb2.ModelConfig:
    renamed = model_config_pb2.ModelConfig()
    renamed.CopyFrom(config)
    renamed.name = names[folder]
    for step in renamed.ensemble_scheduling.step:
        step.model_name = names.get(step.model_name, step.model_name)
    return renamed


def _fill(place: Path, source: Path, config: model_config_pb2.ModelConfig) -> None:
    for path in source.iterdir():
        if path.name != _CONFIG:
            (place / path.name).symlink_to(path)
    text = text_format.MessageToString(config)
    (place / _CONFIG).write_text(text, "utf-8")


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        # Only the links are removed, not the files that they point to.
        shutil.rmtree(folder, ignore_errors=True)
