"""One repository for all, and a mesh on each edge engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.mesh import Mesh, running
from tests.e2e.models import make_repository


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="session", params=["nereid", "grpcio"])
def mesh(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    """The default mesh (gateway and scheduler joined, one executor)."""
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log, f"--grpc-engine={request.param}") as mesh:
        yield mesh
