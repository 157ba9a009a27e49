"""The real tritonserver beside Nereid, both with the protocol rows' models; run only by path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from benchmarks import triton as environment
from benchmarks.failure import BenchError
from tests.compat import triton
from tests.compat.record import NEREID_FLAGS
from tests.e2e.mesh import running
from tests.protocol.exchange import Server, Step
from tests.protocol.python_repository import repository_for
from tests.protocol.row import SERVERS, Row

_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
# The same examples each time, for about three minutes in all; the long one looks for new ones.
settings.register_profile(
    "compat", max_examples=600, derandomize=True, database=None, print_blob=True, **_COMMON
)
settings.register_profile("long", max_examples=20000, **_COMMON)


def _asked_for(config: pytest.Config) -> bool:
    return any("tests/compat" in argument for argument in config.args)


def pytest_configure(config: pytest.Config) -> None:
    """Set the profile, which holds for all tests of a run: only for those that are about these."""
    if _asked_for(config) and not config.getoption("--hypothesis-profile"):
        settings.load_profile("compat")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these out of a plain `make test`: they need half a gigabyte of Triton."""
    asked_for = _asked_for(config)
    return None if asked_for else True


@dataclass(frozen=True)
class Pair:
    """Both servers, for one of SERVERS."""

    name: str
    triton: triton.Triton
    nereid: Server

    def ask(self, step: Step) -> tuple[Any, Any]:
        """Triton's answer (None where it dies of the request) and Nereid's."""
        row = Row("a generated request", (step,))
        return self.triton.ask(row), row.ask(self.nereid)


@pytest.fixture(scope="session")
def venv() -> Path:
    try:
        environment.ensure_venv(triton.VENV)
    except BenchError as error:
        pytest.skip(f"the real Triton cannot be had: {error}")
    return triton.VENV


@pytest.fixture(scope="session", params=list(SERVERS))
def pair(
    request: pytest.FixtureRequest,
    venv: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    log = tmp_path_factory.mktemp("logs")
    python, onnx = (
        repository_for(request.param, tmp_path_factory.mktemp(backend) / "models", backend)
        for backend in ("python", "onnxruntime")
    )
    flags = SERVERS[request.param]
    with (
        triton.running(python, log / "triton", *flags) as real,
        running(onnx, log / "nereid", *flags, *NEREID_FLAGS) as mesh,
    ):
        nereid = Server(mesh.http_port, mesh.grpc_port, mesh.metrics_port)
        yield Pair(request.param, real, nereid)
        nereid.close()
        if real.deaths:
            print(f"\ntritonserver died {len(real.deaths)} times: {sorted(set(real.deaths))}")
