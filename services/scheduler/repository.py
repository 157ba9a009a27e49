"""Model repositories on disk: which models there are, their versions, what their files say.

The only place of the scheduler that reads files, and only while scanning. What cannot be used is
reported with its reason and never stops the rest.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.errors import INTERNAL_MESSAGE, Internal, InvalidArgument, NereidError
from nereid.model_config import fill_backend, parse_config, select_versions
from nereid.pb import model_config_pb2 as config_pb
from services.scheduler.completion import check_servable

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)

_CONFIG_FILE: Final = "config.pbtxt"
_LARGEST_VERSION: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model directory. With an error it cannot be loaded, whether or not it has versions.

    draft is the configuration as far as it is written, with name and backend set. versions are
    those that its version policy asks for.
    """

    name: str
    path: Path
    draft: config_pb.ModelConfig = field(default_factory=config_pb.ModelConfig)
    versions: tuple[int, ...] = ()
    error: NereidError | None = None

    def version_path(self, version: int) -> str:
        """The directory of one version."""
        return str(self.path.absolute() / str(version))


def scan(repositories: Sequence[str]) -> list[FoundModel]:
    """The models of all repositories, by name. A name in two repositories is refused in both."""
    paths: dict[str, list[Path]] = {}
    for repository in repositories:
        for path in sorted(Path(repository).iterdir()):
            if _is_model(path):
                paths.setdefault(path.name, []).append(path)
    return [_read(name, places) for name, places in sorted(paths.items())]


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


def _read(name: str, places: Sequence[Path]) -> FoundModel:
    path = places[0]
    if len(places) > 1:
        where = ", ".join(f"'{place.parent}'" for place in places)
        text = f"model '{name}' is in more than one model repository: {where}"
        return FoundModel(name, path, error=InvalidArgument(text))
    available: tuple[int, ...] = ()
    try:
        available = _versions(path)
        draft = _draft(name, path, available)
        versions = select_versions(draft.version_policy, available)
        if not versions:
            raise InvalidArgument(
                f"at least one version must be available under the version policy of model '{name}'"
            )
    except NereidError as error:
        # Only the latest has to tell the reason: which versions were meant may be unknown.
        return FoundModel(name, path, versions=available[-1:], error=error)
    except OSError as error:
        unreadable = Internal(f"failed to read model '{name}': {error.strerror}")
        return FoundModel(name, path, versions=available[-1:], error=unreadable)
    except Exception:
        _log.exception("model '%s' cannot be read", name)
        return FoundModel(name, path, versions=available[-1:], error=Internal(INTERNAL_MESSAGE))
    return FoundModel(name, path, draft, versions)


def _versions(path: Path) -> tuple[int, ...]:
    """Directories whose names are whole numbers without a leading zero; all else is ignored."""
    names = [place.name for place in path.iterdir() if place.is_dir()]
    numbers = (int(n) for n in names if n.isascii() and n.isdigit() and not n.startswith("0"))
    return tuple(sorted(number for number in numbers if number <= _LARGEST_VERSION))


def _draft(name: str, path: Path, versions: Sequence[int]) -> config_pb.ModelConfig:
    draft = config_pb.ModelConfig()
    try:
        text = (path / _CONFIG_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{_CONFIG_FILE} of model '{name}' is not UTF-8 text") from error
    else:
        draft = parse_config(text, model_name=name)
    if draft.name and draft.name != name:
        raise InvalidArgument(
            f"unexpected directory name '{name}' for model '{draft.name}', directory name must"
            " equal model name"
        )
    fill_backend(draft, model_name=name, filenames=_files(path, versions))
    check_servable(draft)
    return draft


def _files(path: Path, versions: Sequence[int]) -> list[str]:
    """What is in the latest version's directory: it tells the backend where nothing else does."""
    return [place.name for place in (path / str(versions[-1])).iterdir()] if versions else []
