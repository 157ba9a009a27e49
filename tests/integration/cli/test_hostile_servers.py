"""Commands that ask a server whose responses arrive byte by byte, without an end."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from nereid.cli.time_limit import call_within
from nereid_explain import command, rollout, traffic
from nereid_perf.endpoint import Endpoint
from nereid_perf.server import Server, ServerError
from nereid_timeline import command as timeline

pytestmark = pytest.mark.slow

_PAUSE_S = 0.005
_PIECE_LIMIT_S = 0.05


@contextlib.contextmanager
def serving(respond: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that responds in this way, until its client closes."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                respond(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(
    params=[
        b"",
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.nereid.timeline\r\n"
            b"Content-Length: 99999\r\n\r\n{"
        ),
    ],
    ids=["head", "body"],
)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    start: bytes = request.param or b"HTTP/1.1 200 OK\r\nX: "
    over = threading.Event()

    def respond(connection: socket.socket) -> None:
        connection.sendall(start)
        while not over.wait(_PAUSE_S):
            connection.sendall(b" ")

    with serving(respond) as address:
        try:
            yield address
        finally:
            over.set()


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


def test_a_timeline_is_read_only_if_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    ended = threading.Event()

    def respond(connection: socket.socket) -> None:
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
            while True:
                connection.sendall(bytes(1 << 16))
        finally:
            ended.set()

    with serving(respond) as address:
        assert timeline.main(["--last=1s", f"--url={address}"]) == 2
        assert ended.wait(20)
    text = "responds with text/plain instead of application/vnd.nereid.timeline"
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"to": 2, "steps": [1, 100], "every_seconds": 1, "if": "errors<1%"}',
        b'{"to": 1e999, "steps": 1, "every_seconds": "x", "if": [], "former": null}',
    ],
)
@pytest.mark.parametrize("arguments", [[], ["--pause"]])
def test_a_rollout_without_a_state_ends_the_wait(
    body: bytes, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    def respond(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(head + body)

    with serving(respond) as address:
        assert rollout.main(["m", *arguments, f"--url={address}"]) == 2
    assert "the mesh responds with no rollout" in capsys.readouterr().err


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
