"""The models that the arguments of `nereid run` name, and whether they have changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nereid.app.loading import application_files, fingerprint, load_file, place_of
from nereid.app.model import Model
from nereid.app.repository import SourceError
from nereid.pytriton import Triton

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LoadedModel(NamedTuple):
    """A model of a file, and a digest of what it is made of."""

    model: Model
    digest: str


class Application:
    """Files to serve: Python files with models, others as they are."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._files = [Path(path).resolve() for path in paths if path.endswith(".py")]
        self.others = [Path(path).resolve() for path in paths if not path.endswith(".py")]

    def load(self) -> dict[str, LoadedModel]:
        """Execute the Python files anew and return their models.

        Raise what a file raises, or SourceError if it defines no model; modules are kept then.
        """
        if missing := [file for file in self._files if not file.is_file()]:
            raise SourceError(f"{missing[0]} does not exist")
        own = [path for file in self._files for path in application_files(file)]
        kept = {
            name: module
            for name, module in sys.modules.items()
            if getattr(module, "__file__", None) and Path(module.__file__ or "") in own
        }
        for name in kept:
            del sys.modules[name]
        try:
            return {name: each for file in self._files for name, each in _models(file).items()}
        except BaseException:
            sys.modules.update(kept)
            raise

    def times(self) -> Mapping[Path, int]:
        """Return the time of the last change of each file."""
        times: dict[Path, int] = {}
        for file in self._files:
            try:
                times |= {path: path.stat().st_mtime_ns for path in application_files(file)}
            except (OSError, SyntaxError, ValueError):
                # An editor replaces it, or it is about to be corrected.
                times[file] = file.stat().st_mtime_ns if file.exists() else 0
        return times

    def other_times(self) -> Mapping[Path, int]:
        """Return the time of the last change of each argument that is no Python file."""
        return {
            path: max(
                (each.stat().st_mtime_ns for each in [path, *path.rglob("*")] if each.exists()),
                default=0,
            )
            for path in self.others
        }


def _models_in(value: object) -> Sequence[Model]:
    if isinstance(value, Triton):
        return value.models
    return [value] if isinstance(value, Model) else []


def _models(file: Path) -> dict[str, LoadedModel]:
    module = load_file(file)
    models = {each.name: each for value in vars(module).values() for each in _models_in(value)}
    if not models:
        raise SourceError(
            f"{file} defines no model at its top level: decorate a function with @nereid.model; a"
            f" file that binds functions in a main() of its own runs by: python {file.name}"
        )
    places = {name: place_of(model) for name, model in models.items()}
    defined = {place.name for place in places.values() if place is not None}
    return {
        name: LoadedModel(
            model,
            "" if (place := places[name]) is None else fingerprint(*place, defined - {place.name}),
        )
        for name, model in models.items()
    }
