"""The backends of an executor: built in, from installed packages, or Python-based."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from nereid.core.errors import Internal, InvalidArgument
from nereid.core.known_backends import PYTHON_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from nereid.backends import Backend

_log = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "nereid.backends"
# Entry points that name a module which the backend of the same name needs. The backend is offered
# only if the module is found. The module is never loaded through the entry point.
RUNTIME_GROUP: Final = "nereid.backend_runtimes"
# Any other package may replace a backend of this distribution.
_OWN_DISTRIBUTION: Final = "nereid-mesh"

_PACKAGE: Final = "nereid_executor.backends"


class BuiltInBackend(NamedTuple):
    """A backend that is part of the executor."""

    module: str
    requires: str


BUILT_IN: Final[Mapping[str, BuiltInBackend]] = MappingProxyType(
    {
        "identity": BuiltInBackend(f"{_PACKAGE}.identity", "numpy"),
        "onnxruntime": BuiltInBackend(f"{_PACKAGE}.onnx.backend", "onnxruntime"),
        "python": BuiltInBackend(f"{_PACKAGE}.python.backend", "numpy"),
    }
)


class BackendRegistry:
    """Finds backends by name. Any thread may use it."""

    def __init__(
        self,
        python_based_directory: Path | None = None,
        built_in: Mapping[str, BuiltInBackend] = BUILT_IN,
    ) -> None:
        """python_based_directory: directory of Python-based backends (<backend>/model.py)."""
        self._built_in = built_in
        self._python_based: dict[str, Path] = {}
        if python_based_directory is not None:
            sources = sorted(python_based_directory.glob("*/model.py"))
            self._python_based = {path.parent.name: path for path in sources}
            if not sources:
                _log.warning(
                    "there are no Python-based backends (<backend>/model.py) in '%s'",
                    python_based_directory,
                )

    def available_backends(self) -> tuple[str, ...]:
        """Return the names of all backends that are installed."""
        built_in = (
            name for name, backend in self._built_in.items() if _is_installed(backend.requires)
        )
        return tuple(sorted({*built_in, *self._python_based, *_packaged(tuple(sys.path))}))

    def python_based_backends(self) -> tuple[str, ...]:
        """Return the backends that are Python-based for models that name no runtime."""
        return tuple(name for name in self._python_based if self._is_python_based(name, ""))

    def _is_python_based(self, name: str, runtime: str) -> bool:
        if name not in self._python_based:
            return False
        return runtime == PYTHON_FILE or name not in _packaged(tuple(sys.path))

    def load_backend(self, name: str, runtime: str = "") -> Backend:
        """Import the backend of this name.

        An installed package's backend takes precedence, unless the runtime is that of a
        Python-based backend.

        Raises InvalidArgument (Triton's text) for an unknown name, Internal if the import fails.
        """
        if name not in self.available_backends():
            raise InvalidArgument(
                f"unable to find backend library for backend '{name}', "
                "try specifying runtime on the model configuration."
            )
        packaged = _packaged(tuple(sys.path)).get(name)
        try:
            if self._is_python_based(name, runtime):
                module = importlib.import_module(f"{_PACKAGE}.python.python_based")
                backend = module.PythonBased(self._python_based[name])
            elif packaged is not None:
                backend = packaged.load()
            else:
                backend = importlib.import_module(self._built_in[name].module)
        except Exception as error:
            _log.exception("backend '%s' cannot be imported", name)
            raise Internal(
                f"unable to load backend library for backend '{name}': {error}"
            ) from error
        return cast("Backend", backend)

    def may_run_code(self, name: str) -> bool:
        """Return whether describing a model of this backend may run the model's code."""
        return name == "python" or name in self._python_based

    def preload(self, names: Iterable[str]) -> None:
        """Import backends before their first models are loaded. Failures are reported by loads."""
        for name in names:
            with contextlib.suppress(Internal, InvalidArgument):
                self.load_backend(name)

    def any_uses_gpus(self) -> bool:
        """Return whether some installed backend can use GPUs. A broken backend cannot."""
        return any(map(self._uses_gpus, self.available_backends()))

    def _uses_gpus(self, name: str) -> bool:
        try:
            return self.load_backend(name).uses_gpus()
        except Internal:
            return False


# Both functions read the whole environment at every load, so they are cached. A package that is
# installed later is found after a restart.
@cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@cache
def _packaged(_path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the backends of packages on this path by name, except those without their runtime."""
    points = sorted(entry_points(group=ENTRY_POINT_GROUP), key=_is_foreign)
    runtimes = {
        (_owner(point), point.name): point.module for point in entry_points(group=RUNTIME_GROUP)
    }
    usable = (
        point
        for point in points
        if (runtime := runtimes.get((_owner(point), point.name))) is None or _is_installed(runtime)
    )
    return {point.name: point for point in usable}


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else ""


def _is_foreign(point: EntryPoint) -> bool:
    return _owner(point) != _OWN_DISTRIBUTION
