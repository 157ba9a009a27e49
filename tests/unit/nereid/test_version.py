"""Where the version comes from."""

from importlib import metadata
from pathlib import Path

import pytest

from nereid import version


def test_the_installed_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"nereid-mesh": "7.1"}.__getitem__)
    assert version.version() == "7.1"


def test_a_checkout_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert version.version().endswith(" (checkout)")
    assert version.version(tmp_path / "none") == "unknown"
