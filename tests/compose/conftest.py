"""The Compose mesh, started once for all tests here; they are run only by their path."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.keys import Keys
from tests.compose.models import make_repository
from tests.compose.stack import Stack


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these out of a plain `make test`: they need an engine and minutes."""
    asked_for = any("tests/compose" in argument for argument in config.args)
    return None if asked_for else True


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("compose")
    stack = Stack(make_repository(folder / "models"), Keys(folder / "auth"))
    # The containers' user is another one.
    for directory in (folder, folder.parent):
        directory.chmod(0o755)
    try:
        stack.up("--build")
        yield stack
    finally:
        left = stack.down()
    assert left == []
