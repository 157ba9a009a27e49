"""A repository for meshes of tests' own, and a mesh on each edge engine for all others."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.support.mesh.mesh import Mesh, running
from tests.support.models.e2e_models import DATATYPES, make_repository


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="session")
def mesh_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Mesh]]:
    """The default mesh (gateway and scheduler joined, one executor) on an edge engine."""
    repository = make_repository(tmp_path_factory.mktemp("repository"), DATATYPES)
    with ExitStack() as stack:

        @cache
        def started(engine: str) -> Mesh:
            log = tmp_path_factory.mktemp("mesh") / "log"
            return stack.enter_context(running(repository, log, f"--grpc-engine={engine}"))

        yield started


@pytest.fixture(params=["nereid", pytest.param("grpcio", marks=pytest.mark.nightly)])
def mesh(request: pytest.FixtureRequest, mesh_on: Callable[[str], Mesh]) -> Mesh:
    """On each engine; a test that knows better names engines itself, by way of `indirect`."""
    return mesh_on(request.param)
