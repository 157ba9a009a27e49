"""How a service's process starts and ends."""

import logging
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from nereid.observability.logging import LogSettings
from nereid.observability.metrics_page import Page
from nereid.process.service_process import (
    Shutdown,
    StartError,
    listening_for,
    metrics_port,
    run_service,
)


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@dataclass(frozen=True, kw_only=True)
class Settings(LogSettings):
    metrics_port: int = -1
    metrics_address: str = "127.0.0.1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_requests_shutdown(number: signal.Signals) -> None:
    async def serve(_settings: Settings, shutdown: Shutdown) -> int:
        os.kill(os.getpid(), number)
        await shutdown.wait()
        return 7

    assert run_service(Settings(), serve, name="test", program="test") == 7


def test_a_start_error_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(_settings: Settings, _shutdown: Shutdown) -> int:
        with listening_for("--some-port"):
            raise OSError(98, "address in use")
        return 0

    assert run_service(Settings(), serve, name="test", program="test") == 2
    assert capsys.readouterr().err == "test: --some-port: address in use\n"


def test_a_process_that_may_open_too_few_files_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(_settings: Settings, _shutdown: Shutdown) -> int:
        return 0

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (63, hard))
    try:
        code = run_service(Settings(), serve, name="test", program="test")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert code == 2
    assert capsys.readouterr().err == (
        "test: it may open 63 files (ulimit -n), and needs at least 64\n"
    )
    assert run_service(Settings(), serve, name="test", program="test") == 0


async def test_the_metrics_port_is_opened_only_on_request() -> None:
    pages: list[Page] = []
    async with metrics_port(Settings(), pages.append):
        pass
    with pytest.raises(StartError, match="--metrics-port: "):
        async with metrics_port(
            Settings(metrics_port=0, metrics_address="unix:/no/such/directory"), pages.append
        ):
            pass
