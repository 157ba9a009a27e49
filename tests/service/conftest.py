"""The model repository that most tests of a scheduler begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.scheduler_world import add_model

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One model, the doubler; tests with others have a repository of their own."""
    path = tmp_path / "models"
    add_model(path)
    return path
