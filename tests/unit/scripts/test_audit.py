"""An audit passes only if every version was looked up and none is vulnerable."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts.audit import audit

FINE = {"name": "a", "version": "1", "vulns": []}
VULNERABLE = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "c", "skip_reason": "Dependency not found"}


def program(folder: Path, output: str, error: str = "", code: int = 0) -> Path:
    """A stand-in for pip-audit, which prints this."""
    path = folder / "pip-audit"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stdout.write({output!r})\n"
        f"sys.stderr.write({error!r})\nsys.exit({code})\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("dependencies", "code", "text"),
    [
        ([FINE], 0, "1 of 1 audited, 0 vulnerable"),
        ([FINE, VULNERABLE], 1, "b 2: CVE-1, fixed in: 3"),
        ([FINE, UNKNOWN], 2, "NOT AUDITED: c: Dependency not found"),
        ([UNKNOWN, VULNERABLE], 2, "1 of 2 audited, 1 vulnerable"),
        ([UNKNOWN] * 30, 2, "NOT AUDITED: 20 more"),
        ([], 2, "0 of 0 audited"),
    ],
)
def test_outcomes(
    dependencies: list[dict[str, object]],
    code: int,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = program(tmp_path, json.dumps({"dependencies": dependencies}))
    assert audit(Path("some.txt"), "pypi", made) == code
    assert text in capsys.readouterr().out


def test_a_service_that_cannot_be_reached_is_no_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = program(tmp_path, "", "Traceback\nConnectionError: api.osv.dev", 1)
    assert audit(Path("some.txt"), "osv", made) == 2
    assert "NOT AUDITED: pip-audit ended with 1: ConnectionError: api.osv.dev" in (
        capsys.readouterr().out
    )
