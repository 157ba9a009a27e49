"""The file of --traffic-file: a JSON object with models' traffic and shadows by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.comparison.shadow import check_other_model, read_shadow
from nereid.core.files.file_watch import FileError, FileWatch
from nereid.core.files.regular_files import read_regular_file
from nereid.core.traffic.weights import read_traffic, unique_members
from nereid_scheduler.core.models.traffic_table import FileSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Thousands of models. A thread reads the file, but other threads wait while JSON is parsed.
_MAX_BYTES: Final = 1 << 20
# They are logged, and so are the names.
_MAX_ERRORS: Final = 20
_MAX_NAME: Final = 256


def read_traffic_file(path: str) -> Mapping[str, FileSetting]:
    """Return the settings of models by name. Raises FileError with up to 20 reasons."""
    try:
        text = read_regular_file(Path(path), _MAX_BYTES).decode("utf-8-sig")
        document: Any = json.loads(text, object_pairs_hook=unique_members)
    except OSError as error:
        raise FileError([f"it cannot be read: {error.strerror}"]) from error
    except RecursionError:
        raise FileError(["it is nested too deeply"]) from None
    except ValueError as error:
        raise FileError([f"it is no JSON: {error}"]) from error
    if not isinstance(document, dict):
        raise FileError(["it is no object with models by their names"])
    settings, errors = {}, []
    for name, described in document.items():
        try:
            settings[name] = _read_setting(name, described)
        except ValueError as error:
            errors.append(f"model '{name[:_MAX_NAME]}': {error}")
        if len(errors) == _MAX_ERRORS:
            errors.append("further models were not read")
            break
    if errors:
        raise FileError(errors)
    return settings


def _read_setting(name: str, document: object) -> FileSetting:
    if not isinstance(document, dict) or "shadow" not in document:
        return FileSetting(read_traffic(document))
    weights = {key: value for key, value in document.items() if key != "shadow"}
    try:
        shadow = read_shadow(document["shadow"])
        check_other_model(name, shadow)
    except ValueError as error:
        raise ValueError(f"shadow: {error}") from None
    return FileSetting(read_traffic(weights) if weights else None, shadow)


def watch_traffic_file(
    path: str,
    content: Mapping[str, FileSetting],
    on_change: Callable[[Mapping[str, FileSetting]], None],
) -> FileWatch[Mapping[str, FileSetting]]:
    """Return a watch of the file."""
    return FileWatch(
        "--traffic-file",
        path,
        content,
        read=read_traffic_file,
        on_change=on_change,
        describe=lambda changed: f"models={len(changed)}",
    )
