"""When files count as written, and how a failure is described."""

from __future__ import annotations

import os
import ssl
import time
from pathlib import Path

import pytest

from nereid.rpc.net.tls_files import FileVersion, reason


@pytest.mark.parametrize(
    ("age_s", "settled"), [(60, True), (1.5, True), (0, False), (-3600, True), (-0.5, False)]
)
def test_a_file_is_settled_a_second_after_it_was_written(
    tmp_path: Path, age_s: float, settled: bool
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    then = time.time() - age_s
    os.utime(path, (then, then))
    assert FileVersion.of(str(path)).settled() is settled


def test_a_removed_file_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    before = FileVersion.of(str(path))
    path.unlink()
    assert FileVersion.of(str(path)) != before
    assert FileVersion.of(str(path)).settled()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ssl.SSLError(1, "[SSL: X] what happened (_ssl.c:1006)"), "[SSL: X] what happened"),
        (OSError(2, "No such file"), "[Errno 2] No such file"),
        (ConnectionResetError(), "ConnectionResetError"),
        (TimeoutError("timed out"), "timed out"),
    ],
)
def test_reasons_have_no_source_lines(error: Exception, text: str) -> None:
    assert text in reason(error)
    assert "_ssl.c" not in reason(error)
