"""NVTX ranges by the package or by a real library, loaded as NVIDIA's would be."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nereid_executor.core.nvtx_ranges import NvtxRanges, open_ranges

SOURCE = """
#include <string.h>
static char seen[256];
int nvtxRangePushA(const char *name) { strcat(seen, name); strcat(seen, "("); return 0; }
int nvtxRangePop(void) { strcat(seen, ")"); return 0; }
const char *read_seen(void) { return seen; }
"""


def missing(name: str) -> Any:
    raise ImportError(name)


def test_the_library(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "fake.c").write_text(SOURCE)
    built = tmp_path / "fake.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, tmp_path / "fake.c"], check=True)
    asked = []

    def load(name: str) -> ctypes.CDLL:
        asked.append(name)
        if len(asked) == 1:
            raise OSError(name)
        return ctypes.CDLL(str(built))

    ranges = open_ranges(missing, load)
    assert ranges is not None
    assert asked == ["libnvToolsExt.so.1", "libnvToolsExt.so"]
    inner = ranges.around("infer", lambda x: x + 1)
    assert ranges.around("batch", inner)(1) == 2
    library = ctypes.CDLL(str(built))
    library.read_seen.restype = ctypes.c_char_p
    assert library.read_seen() == b"batch(infer())"


def test_the_package_comes_first() -> None:
    seen: list[str] = []
    package = SimpleNamespace(push_range=seen.append, pop_range=lambda: seen.append("end"))
    ranges = open_ranges(lambda name: package if name == "nvtx" else missing(name))
    assert ranges is not None
    assert ranges.around("input", len)("abc") == 3
    assert seen == ["input", "end"]


def test_a_range_ends_with_an_error() -> None:
    seen: list[str] = []
    ranges = NvtxRanges(seen.append, lambda: seen.append("end"))
    with pytest.raises(ZeroDivisionError):
        ranges.around("infer", lambda: 1 / 0)()
    assert seen == ["infer", "end"]


def test_neither_is_there(caplog: pytest.LogCaptureFixture) -> None:
    def no_library(name: str) -> Any:
        raise OSError(name)

    assert open_ranges(missing, no_library) is None
    assert "pip install nvtx" in caplog.text
