"""NVTX ranges around the phases of a batch, which NVIDIA's Nsight shows by name."""

from __future__ import annotations

import ctypes
import importlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE: Final = "nvtx"
_LIBRARIES: Final = ("libnvToolsExt.so.1", "libnvToolsExt.so")


class NvtxRanges:
    """Makes ranges in the calling thread."""

    def __init__(self, push: Callable[[str], Any], pop: Callable[[], Any]) -> None:
        self._push = push
        self._pop = pop

    def around(self, name: str, call: Callable[P, R]) -> Callable[P, R]:
        """Return a function that makes the same call within a range of this name."""
        push, pop = self._push, self._pop

        def ranged(*args: P.args, **kwargs: P.kwargs) -> R:
            push(name)
            try:
                return call(*args, **kwargs)
            finally:
                pop()

        return ranged


def open_ranges(
    import_module: Callable[[str], Any] = importlib.import_module,
    load_library: Callable[[str], Any] = ctypes.CDLL,
) -> NvtxRanges | None:
    """Return ranges; `None` if neither the package nor the library is found, which is logged."""
    try:
        package = import_module(_PACKAGE)
    except ImportError:
        pass
    else:
        return NvtxRanges(package.push_range, package.pop_range)
    for name in _LIBRARIES:
        try:
            library = load_library(name)
        except OSError:
            continue
        return NvtxRanges(partial(_push_to, library), library.nvtxRangePop)
    _log.warning("--nvtx: there are no NVTX ranges: pip install nvtx, or install libnvToolsExt")
    return None


def _push_to(library: Any, name: str) -> None:
    library.nvtxRangePushA(name.encode())
