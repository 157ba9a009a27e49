"""The file of --traffic-file: a JSON object with the traffic of models by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nereid.core.files.file_watch import FileError, FileWatch
from nereid.core.files.regular_files import read_regular_file
from nereid.core.traffic.weights import Traffic, read_traffic, unique_members

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def read_traffic_file(path: str) -> Mapping[str, Traffic]:
    """Return the traffic of models by name. Raises FileError with all reasons."""
    try:
        text = read_regular_file(Path(path)).decode()
        document: Any = json.loads(text, object_pairs_hook=unique_members)
    except OSError as error:
        raise FileError([f"it cannot be read: {error.strerror}"]) from error
    except RecursionError:
        raise FileError(["it is nested too deeply"]) from None
    except ValueError as error:
        raise FileError([f"it is no JSON: {error}"]) from error
    if not isinstance(document, dict):
        raise FileError(["it is no object with models by their names"])
    traffic, errors = {}, []
    for name, described in document.items():
        try:
            traffic[name] = read_traffic(described)
        except ValueError as error:
            errors.append(f"model '{name}': {error}")
    if errors:
        raise FileError(errors)
    return traffic


def watch_traffic_file(
    path: str,
    content: Mapping[str, Traffic],
    on_change: Callable[[Mapping[str, Traffic]], None],
) -> FileWatch[Mapping[str, Traffic]]:
    """Return a watch of the file."""
    return FileWatch(
        "--traffic-file",
        path,
        content,
        read=read_traffic_file,
        on_change=on_change,
        describe=lambda changed: f"models={len(changed)}",
    )
