"""The command `nereid perf mock`: prints the server's addresses and serves until a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import uvloop

from nereid.config.flags import boolean, flag, integer, own_port
from nereid.config.settings_reader import read_shared_settings, settings_parser
from nereid.core.terminal import print_error
from nereid_perf.endpoint import TlsSettings
from nereid_perf.mock.model import MockModel
from nereid_perf.mock.server import MockServer
from nereid_perf.mock.service_times import ServiceTimes, Stalls

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_PROGRAM: Final = "nereid perf mock"
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise ValueError("expected a number, not negative")
    return value


@dataclass(frozen=True, kw_only=True)
class MockSettings:
    """Serve KServe v2 over HTTP and gRPC with set response times, under any model name."""

    host: str = flag("127.0.0.1", "interface to listen at")
    http_port: int = flag(8000, "0: any that is free, -1: none", own_port)
    grpc_port: int = flag(8001, "as before", own_port)
    delay_ms: float = flag(0.0, "that each request takes", _number)
    jitter_ms: float = flag(0.0, "up to so much more or less", _number)
    concurrency: int = flag(0, "requests served at a time; 0: all", integer(0, 1 << 20))
    stall_after: float = flag(0.0, "seconds from the first request to a stall", _number)
    stall_for: float = flag(0.0, "seconds of it, in which nothing is served; 0: none", _number)
    stall_every: float = flag(0.0, "seconds from one stall to the next; 0: one", _number)
    responses: int = flag(
        1, "to each request over streams; more than 1: the model is decoupled", integer(0, 1 << 20)
    )
    between_ms: float = flag(0.0, "from one of them to the next", _number)
    sequences: bool = flag(False, "the model has sequences", boolean, bare="true")
    fail_percent: float = flag(0.0, "of requests that fail", _number)
    size: int = flag(8, "elements of its FP32 input and output", integer(1, 1 << 28))
    tls_cert: str = flag("", "PEM file of a certificate: TLS at both ports")
    tls_key: str = flag("", "PEM file of its key")
    tls_root: str = flag("", "PEM file of the authorities of clients, which must then show one")
    seed: int = flag(0, "of what is random", integer(0, 1 << 62))

    def errors(self) -> list[str]:
        """Return the errors in these settings, one line each."""
        if bool(self.tls_cert) != bool(self.tls_key) or (self.tls_root and not self.tls_cert):
            return ["--tls-cert and --tls-key: give both"]
        if self.stall_every and self.stall_every <= self.stall_for:
            return ["--stall-every: expected more than --stall-for"]
        return []


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags, for shell completion."""
    return settings_parser((MockSettings,), _PROGRAM)


def main(argv: Sequence[str]) -> int:
    """Serve until a signal, and return the exit code."""
    (settings,) = read_shared_settings((MockSettings,), argv, {}, _PROGRAM, ending="")
    try:
        uvloop.run(_serve(settings))
    except OSError as error:
        print_error(_PROGRAM, error)
        return 1
    return 0


async def _serve(settings: MockSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stalls = Stalls(
        round(settings.stall_after * _NS_PER_S),
        round(settings.stall_for * _NS_PER_S),
        round(settings.stall_every * _NS_PER_S),
    )
    times = ServiceTimes(
        round(settings.delay_ms * _NS_PER_MS),
        jitter_ns=round(settings.jitter_ms * _NS_PER_MS),
        concurrency=settings.concurrency,
        stalls=stalls,
        seed=settings.seed,
    )
    server = MockServer(
        MockModel(settings.size, settings.responses, settings.sequences),
        times,
        between_ns=round(settings.between_ms * _NS_PER_MS),
        fail_percent=settings.fail_percent,
        seed=settings.seed,
    )
    ports: dict[str, Any] = {"http": settings.http_port, "grpc": settings.grpc_port}
    tls = None
    if settings.tls_cert:
        tls = TlsSettings(settings.tls_root, settings.tls_cert, settings.tls_key)
    wanted = {name: (settings.host, port) if port >= 0 else None for name, port in ports.items()}
    addresses = iter(await server.listen(**wanted, tls=tls))
    for name, address in wanted.items():
        if address is not None:
            sys.stdout.write(f"{name} {next(addresses)}\n")
    sys.stdout.flush()
    await stop.wait()
    await server.close()
