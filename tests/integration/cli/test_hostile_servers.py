"""Commands that ask a server whose responses arrive byte by byte, without an end."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from nereid.cli.time_limit import call_within
from nereid_explain import command, traffic
from nereid_perf.endpoint import Endpoint
from nereid_perf.server import Server, ServerError
from nereid_timeline import command as timeline

pytestmark = pytest.mark.slow

_PAUSE_S = 0.005
_PIECE_LIMIT_S = 0.05


@pytest.fixture(
    params=[b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{"], ids=["head", "body"]
)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    start: bytes = request.param or b"HTTP/1.1 200 OK\r\nX: "
    over = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.sendall(start)
                while not over.wait(_PAUSE_S):
                    self.request.sendall(b" ")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (command.main, ["m"]),
        (traffic.main, ["m"]),
        (timeline.main, ["--last=1s"]),
    ],
    ids=["explain", "traffic", "timeline"],
)
def test_commands_end(
    main: Callable[[Sequence[str]], int],
    arguments: list[str],
    address: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*arguments, f"--url={address}", f"--timeout={_PIECE_LIMIT_S}"]) == 2
    assert "no whole response within 0.5 s" in capsys.readouterr().err


def test_perf_ends(address: str) -> None:
    server = Server(Endpoint("http", address), _PIECE_LIMIT_S)
    with pytest.raises(ServerError, match=r"no whole response within 0\.5 s"):
        server.update_trace_settings({})


def test_errors_of_calls_are_their_own() -> None:
    def fail() -> None:
        raise TimeoutError("of the socket")

    with pytest.raises(TimeoutError, match="of the socket"):
        call_within(1, fail)
    assert call_within(1, lambda: 3) == 3
