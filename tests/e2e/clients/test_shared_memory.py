"""NVIDIA's perf_analyzer with shared memory, through the whole mesh."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.support.mesh.mesh import Mesh, running
from tests.support.mesh.nvidia_clients import MARKED_PROTOCOLS
from tests.support.mesh.perf_analyzer import COUNTED, measured, needs_analyzer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mesh_on(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Mesh]]:
    """As the other tests' mesh, but its clients may share memory with it."""
    with ExitStack() as stack:

        @cache
        def started(engine: str) -> Mesh:
            flags = f"--grpc-engine={engine}", "--allow-client-shm=true"
            log = tmp_path_factory.mktemp("mesh") / "log"
            return stack.enter_context(running(repository, log, *flags))

        yield started


on_both_engines = pytest.mark.parametrize(("mesh", "protocol"), MARKED_PROTOCOLS, indirect=["mesh"])


@needs_analyzer
@pytest.mark.parametrize("mode", [pytest.param("--sync", marks=pytest.mark.nightly), "--async"])
@on_both_engines
def test_perf_analyzer_measures(mesh: Mesh, tmp_path: Path, protocol: str, mode: str) -> None:
    flags = [mode, "--shared-memory=system", "--concurrency-range=8", *COUNTED]
    measured(mesh, protocol, "doubler", tmp_path / "report.csv", *flags)
