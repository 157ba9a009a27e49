"""The backends of an executor: Nereid's own, those of installed packages, Python-based ones."""

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from nereid.backends import Backend

_log = logging.getLogger(__name__)

# Where installed packages name their backends.
ENTRY_POINT_GROUP: Final = "nereid.backends"

_PACKAGE: Final = "nereid_executor.backends"


class BuiltInBackend(NamedTuple):
    """One of Nereid's own backends."""

    module: str
    # The package that must be installed for the module to work.
    requires: str


BUILT_IN: Final[Mapping[str, BuiltInBackend]] = MappingProxyType(
    {
        "identity": BuiltInBackend(f"{_PACKAGE}.identity", "numpy"),
        "onnxruntime": BuiltInBackend(f"{_PACKAGE}.onnx.backend", "onnxruntime"),
        "openvino": BuiltInBackend(f"{_PACKAGE}.openvino", "openvino"),
        "pytorch": BuiltInBackend(f"{_PACKAGE}.pytorch.backend", "torch"),
        "python": BuiltInBackend(f"{_PACKAGE}.python.backend", "numpy"),
        "tensorrt": BuiltInBackend(f"{_PACKAGE}.tensorrt.backend", "tensorrt"),
    }
)


class BackendRegistry:
    """Finds backends by name; may be used from any thread."""

    def __init__(
        self,
        python_based_directory: Path | None = None,
        built_in: Mapping[str, BuiltInBackend] = BUILT_IN,
    ) -> None:
        """python_based_directory: has Python-based backends, each as <backend>/model.py."""
        self._built_in = built_in
        self._python_based: dict[str, Path] = {}
        if python_based_directory is not None:
            found = sorted(python_based_directory.glob("*/model.py"))
            self._python_based = {path.parent.name: path for path in found}
            if not found:
                _log.warning(
                    "there are no Python-based backends (<backend>/model.py) in '%s'",
                    python_based_directory,
                )

    def available_backends(self) -> tuple[str, ...]:
        """The names of all backends that are installed."""
        own = (name for name, each in self._built_in.items() if _is_installed(each.requires))
        return tuple(sorted({*own, *self._python_based, *_packaged(tuple(sys.path))}))

    def load_backend(self, name: str) -> Backend:
        """Import the backend of this name; installed packages' go before Nereid's own.

        Raises:
            InvalidArgument: there is none; worded as Triton words it.
            Internal: it cannot be imported.
        """
        if name not in self.available_backends():
            raise InvalidArgument(
                f"unable to find backend library for backend '{name}', "
                "try specifying runtime on the model configuration."
            )
        packaged = _packaged(tuple(sys.path)).get(name)
        try:
            if packaged is not None:
                backend = packaged.load()
            elif name in self._python_based:
                module = importlib.import_module(f"{_PACKAGE}.python.python_based")
                backend = module.PythonBased(self._python_based[name])
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
        """Import backends ahead of their first models, whose loads report what fails."""
        for name in names:
            with contextlib.suppress(Internal, InvalidArgument):
                self.load_backend(name)

    def any_uses_gpus(self) -> bool:
        """Whether some backend can, as installed here; one that cannot be imported cannot."""
        return any(map(self._uses_gpus, self.available_backends()))

    def _uses_gpus(self, name: str) -> bool:
        try:
            return self.load_backend(name).uses_gpus()
        except Internal:
            return False


# Both read the whole environment, and every load of a model needs them. A package that is installed
# later is found after a restart.
@cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@cache
def _packaged(_path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """The entry points of the packages on this path."""
    return {each.name: each for each in entry_points(group=ENTRY_POINT_GROUP)}
