"""Finds the packages that a Python model names, and reads all files that decide its environment."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from nereid_executor.backends.python.packages.script_metadata import (
    allows_python,
    read_script_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REQUIREMENTS: Final = "requirements.txt"
LOCK: Final = "requirements.lock"
PYLOCK: Final = "pylock.toml"
PROJECT: Final = "pyproject.toml"
PROJECT_LOCK: Final = "uv.lock"
# The lock that `uv lock --script model.py` writes is model.py.lock.
SCRIPT_LOCK: Final = ".lock"
WHEELS: Final = "wheels"
_MAX_BYTES: Final = 1 << 20
_MAX_FILES: Final = 32
_INCLUDE: Final = re.compile(r"(?:-r|-c|--requirement|--constraint)[\s=]*(?P<path>\S+)")
_LOCAL: Final = re.compile(
    r"(-e|--editable)\b|\.{0,2}/|[\w.,\[\] -]+@\s*(file:|\.{0,2}/)|file:|\S+\.whl(\s|$)"
)
# With a wheelhouse, installers ignore these lines.
_INDEX_OPTIONS: Final = ("-i", "--index-url", "--extra-index-url")
_REMOTE: Final = re.compile(r"[a-z+]+://", re.IGNORECASE)


class Lock(Enum):
    """The kinds of locks, whose versions alone may be installed. Only HASHES needs no uv."""

    NONE = "none"
    HASHES = LOCK
    PYLOCK = PYLOCK
    PROJECT = PROJECT_LOCK
    SCRIPT = SCRIPT_LOCK


class RequestError(ValueError):
    """The files that name a model's packages cannot be used; the text says why."""


@dataclass(frozen=True)
class PackageRequest:
    """Packages that one version of a model needs."""

    # The file that names them.
    source: Path
    # Key: a relative path. Value: a file's text. The first one is what to install: requirements,
    # pylock.toml, or the project or script that has the lock beside it.
    texts: dict[str, str]
    lock: Lock = Lock.NONE
    requires_python: str = ""
    # Folder of the model's own wheels.
    wheels: Path | None = None

    @property
    def has_remote_source(self) -> bool:
        """True if requirements name a package by a URL, which no wheelhouse replaces."""
        lines = (line for text in self.texts.values() for line in _lines(text))
        return self.lock in (Lock.NONE, Lock.HASHES) and any(
            _REMOTE.search(line) is not None and not line.startswith(_INDEX_OPTIONS)
            for line in lines
        )


def find_request(version_path: Path, script: Path) -> PackageRequest | None:
    """Return the packages that a version names; `None` if it names none.

    The version's own requirements take precedence over those in its script, and these over the
    model's. Raises RequestError if they cannot be used.
    """
    # The parent of an export belongs to other models as well.
    is_version = version_path.name.isdecimal()
    folders = (version_path, version_path.parent) if is_version else (version_path,)
    wheels = next((each / WHEELS for each in folders if (each / WHEELS).is_dir()), None)
    return (
        _request_of_folder(version_path, folders[-1], wheels)
        or _request_of_script(script, folders[-1], wheels)
        or (_request_of_folder(folders[-1], folders[-1], wheels) if is_version else None)
    )


def _request_of_folder(folder: Path, root: Path, wheels: Path | None) -> PackageRequest | None:
    path, lock = folder / REQUIREMENTS, folder / LOCK
    text, lock_text = _read(path), _read(lock)
    if lock_text is not None:
        texts = _locked_texts(lock, lock_text, root)
        return PackageRequest(lock, texts, Lock.HASHES, wheels=wheels)
    if (request := _request_of_toml_lock(folder, root, wheels)) is not None:
        return request
    if text is not None and any(_lines(text)):
        return PackageRequest(path, _with_included(path, text, root), wheels=wheels)
    return None


def _request_of_toml_lock(folder: Path, root: Path, wheels: Path | None) -> PackageRequest | None:
    for kind in (Lock.PYLOCK, Lock.PROJECT):
        lock = folder / kind.value
        lock_text = _read(lock)
        if lock_text is None:
            continue
        texts = {os.path.relpath(lock, root): lock_text}
        if kind is Lock.PROJECT:
            project = folder / PROJECT
            project_text = _read(project)
            if project_text is None:
                raise RequestError(f"{lock} is the lock of {PROJECT}, which is not beside it")
            texts = {os.path.relpath(project, root): project_text, **texts}
        return PackageRequest(lock, texts, kind, _requires_python(lock, lock_text), wheels)
    return None


def _requires_python(lock: Path, text: str) -> str:
    try:
        given = tomllib.loads(text).get("requires-python", "")
        if not isinstance(given, str):
            raise ValueError("its 'requires-python' is no string")  # noqa: TRY004 - of a file
        allows_python(given, (0, 0, 0))
    except ValueError as error:
        raise RequestError(f"{lock}: {error}") from error
    return given.strip()


def _request_of_script(script: Path, root: Path, wheels: Path | None) -> PackageRequest | None:
    source = _read_script(script)
    try:
        metadata = None if source is None else read_script_metadata(source)
    except ValueError as error:
        raise RequestError(f"{script}: {error}") from error
    if metadata is None:
        return None
    python = metadata.requires_python
    lock = script.with_name(script.name + SCRIPT_LOCK)
    lock_text = _read(lock)
    if source is not None and lock_text is not None:
        texts = {script.name: source, lock.name: lock_text}
        return PackageRequest(lock, texts, Lock.SCRIPT, python, wheels)
    text = "\n".join(metadata.dependencies)
    texts = _with_included(script.with_name(REQUIREMENTS), text, root)
    return PackageRequest(script, texts, requires_python=python, wheels=wheels)


def _locked_texts(lock: Path, text: str, root: Path) -> dict[str, str]:
    if "--hash=" not in text:
        raise RequestError(f"{lock} has no hashes (uv pip compile --generate-hashes writes them)")
    return _with_included(lock, text, root)


def _with_included(path: Path, text: str, root: Path) -> dict[str, str]:
    """Return a file and those that it includes; all lie in the model's folder."""
    texts = {os.path.relpath(path, root): text}
    root = root.resolve()
    waiting = [(path, text)]
    while waiting:
        path, text = waiting.pop()
        for line in _lines(text):
            if _LOCAL.match(line):
                raise RequestError(
                    f"{path} names a local file: '{line}'; put a wheel into '{WHEELS}', and name"
                    " its package"
                )
            match = _INCLUDE.fullmatch(line)
            if match is None:
                continue
            included = (path.parent / match["path"]).resolve()
            included_text = _read(included) if included.is_relative_to(root) else None
            if included_text is None or len(texts) >= _MAX_FILES:
                raise RequestError(f"{path} includes '{match['path']}', which cannot be read")
            name = os.path.relpath(included, root)
            if name not in texts:
                texts[name] = included_text
                waiting.append((included, included_text))
    return texts


def _lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        if code := re.sub(r"(^|\s)#.*", "", line).strip():
            yield code


def _read_script(path: Path) -> str | None:
    # A script may be of any length and in any encoding; its block is ASCII and near its beginning.
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        # The load reports this error.
        return None


def _read(path: Path) -> str | None:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > _MAX_BYTES:
            raise RequestError(f"{path} is larger than {_MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
