"""The real tritonserver beside Nereid, both with the protocol rows' models; run only by path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from benchmarks.failure import BenchError
from benchmarks.peers import triton as environment
from tests.conformance.exchange import Server, dumped
from tests.conformance.python_repository import repository_for
from tests.conformance.row import SERVERS
from tests.conformance.triton import triton
from tests.conformance.triton.record import NEREID_FLAGS
from tests.support.mesh.mesh import running

_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}
# The same examples each time, for about three minutes in all; the long one looks for new ones.
settings.register_profile(
    "compat", max_examples=600, derandomize=True, database=None, print_blob=True, **_COMMON
)
settings.register_profile("long", max_examples=20000, **_COMMON)


def _asked_for(config: pytest.Config) -> bool:
    return any("tests/conformance/triton" in argument for argument in config.args)


def pytest_configure(config: pytest.Config) -> None:
    """Set the profile, which holds for all tests of a run: only for those that are about these."""
    if _asked_for(config) and not config.getoption("--hypothesis-profile"):
        settings.load_profile("compat")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these out of a plain `make test`: they need half a gigabyte of Triton."""
    asked_for = _asked_for(config)
    return None if asked_for else True


# How often a real server is asked, each time a new one, before its response counts.
ASKED: Final = 3


@contextmanager
def skipping() -> Iterator[None]:
    """Without the real server there is nothing to compare with."""
    try:
        yield
    except BenchError as error:
        why, _, log = str(error).partition("\n")
        print(log)
        pytest.skip(f"the real Triton cannot be had: {why}")


@dataclass(frozen=True)
class Pair:
    """Both servers, for one of SERVERS."""

    name: str
    triton: triton.Triton
    nereid: Server

    def real(self, report: Callable[[], Any], fits: Callable[[Any], bool]) -> Any:
        """What the real server reports; None where it crashes, or responds differently each time.

        What fits counts at once, all else when new servers give the same.
        """
        with skipping():
            reported = report()
            for _ in range(1, ASKED):
                if reported is None or fits(reported):
                    return reported
                before, reported = reported, self._anew(report)
                if not fits(reported) and dumped(reported) != dumped(before):
                    return None
            return reported

    def _anew(self, report: Callable[[], Any]) -> Any:
        self.triton.renew()
        return report()


@pytest.fixture(scope="session")
def venv() -> Path:
    with skipping():
        environment.ensure_venv(triton.VENV)
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
    with ExitStack() as stack:
        with skipping():
            real = stack.enter_context(triton.running(python, log / "triton", *flags))
        mesh = stack.enter_context(running(onnx, log / "nereid", *flags, *NEREID_FLAGS))
        nereid = Server(mesh.http_port, mesh.grpc_port, mesh.metrics_port, mesh.process)
        yield Pair(request.param, real, nereid)
        nereid.close()
        if real.deaths:
            print(f"\ntritonserver died {len(real.deaths)} times: {sorted(set(real.deaths))}")
