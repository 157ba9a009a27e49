"""`nereid adopt` as a user starts it, before two running servers."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.mesh.mesh import STOP_S, ask, free_port, until

_MAIN = "from nereid_adopt.command import main; import sys; sys.exit(main(sys.argv[1:]))"
NEREID = (sys.executable, "-c", _MAIN)


class Adopting:
    """A running proxy; `http` and `grpc` are its addresses, as a mesh has them."""

    def __init__(self, old_http: str, old_grpc: str, directory: Path, *flags: str) -> None:
        self.http_port, self.grpc_port = free_port(), free_port()
        self.http, self.grpc = f"127.0.0.1:{self.http_port}", f"127.0.0.1:{self.grpc_port}"
        self.log = directory / "adopt.log"
        self._control = f"--control={directory / 'adopt.sock'}"
        ports = f"--http-port={self.http_port}", f"--grpc-port={self.grpc_port}"
        argv = [*NEREID, old_http, f"--grpc={old_grpc}", *ports, self._control, *flags]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)

    def get(self, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of one HTTP request to the proxy."""
        return ask(self.http, path, method, body)

    def turn(self, weight: int) -> None:
        """Turn a part of the traffic over."""
        subprocess.run([*NEREID, "turn", str(weight), self._control], check=True, timeout=STOP_S)

    def back(self) -> None:
        """Turn all traffic back."""
        subprocess.run([*NEREID, "back", self._control], check=True, timeout=STOP_S)

    def report(self) -> dict[str, Any]:
        """The report as a document."""
        result = subprocess.run(
            [*NEREID, "report", "--json", self._control],
            capture_output=True,
            text=True,
            timeout=STOP_S,
            check=False,
        )
        assert result.returncode in {0, 1}, result.stderr
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    def text_report(self) -> str:
        """The report as text."""
        argv = [*NEREID, "report", self._control]
        return subprocess.run(
            argv, stdout=subprocess.PIPE, text=True, timeout=STOP_S, check=False
        ).stdout

    def await_compared(self, number: int) -> dict[str, Any]:
        """The report, as soon as so many inferences were compared or left out."""
        report: dict[str, Any] = {}

        def done() -> bool:
            report.update(self.report())
            counts = report["comparison"]
            skipped = sum(counts["not_compared"].values())
            left_out = sum(item["count"] for item in report["not_copied"])
            return bool(counts["compared"] + skipped + left_out >= number)

        until(done, f"{number} comparisons; the log: {self.log}")
        return report


@contextlib.contextmanager
def adopting(old_http: str, old_grpc: str, directory: Path, *flags: str) -> Iterator[Adopting]:
    proxy = Adopting(old_http, old_grpc, directory, *flags)
    try:

        def serves() -> bool:
            assert proxy.process.poll() is None, proxy.log.read_text()
            return "serving HTTP" in proxy.log.read_text()

        until(serves, "the proxy")
        yield proxy
    finally:
        proxy.process.send_signal(signal.SIGTERM)
        try:
            proxy.process.wait(STOP_S)
        finally:
            proxy.process.kill()
