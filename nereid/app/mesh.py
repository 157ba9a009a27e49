"""A real mesh as a value: `nereid serve` as a child process, with the models of an application."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self, overload
from urllib.parse import quote

from nereid.app.loading import end_loading
from nereid.app.repository import write_model, write_models
from nereid.core.files.temporary_directories import APP, TemporaryDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.app.client import AsyncClient, Client
    from nereid.app.model import Model
    from nereid.app.repository import Source

# The gateway logs its addresses once it serves them.
_SERVING: Final = re.compile(
    r"serving HTTP on ([^\s,]+), gRPC on ([^\s,]+), metrics on ([^\s,\"]+)"
)
_TAIL: Final = 15
_START_S: Final = 120.0
_STOP_S: Final = 35.0


class MeshError(RuntimeError):
    """The mesh did not start, or a model did not load."""


class Ports(NamedTuple):
    """Ports to serve; 0: a free one."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0


class Mesh:
    """A running mesh, which ends with its `with` block, or with this process however that ends."""

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        host: str = "127.0.0.1",
        ports: Ports = Ports(),  # noqa: B008 - a constant
        flags: Sequence[str] = (),
        on_line: Callable[[str], object] | None = None,
    ) -> None:
        """Start the mesh and wait until its models serve; raise MeshError if they do not.

        flags: further ones of `nereid serve`; on_line: called with each line of its output.
        """
        self._sources = list(sources)
        self._directory = TemporaryDirectory.make(APP)
        self._client: Client | None = None
        self._aclient: AsyncClient | None = None
        root = self._directory.path
        self.repository = root / "repository"
        self.log = root / "log"
        try:
            self.models = write_models(self.repository, self._sources)
            argv = [
                f"--model-repository={self.repository}",
                "--model-control-mode=explicit",
                *(f"--load-model={name}" for name in self.models),
                *(f"--{name}-port={port}" for name, port in zip(ports._fields, ports, strict=True)),
                f"--http-address={host}",
                f"--grpc-address={host}",
                *flags,
            ]
            self._process = MeshProcess(argv, self.log, on_line)
            self._finalizer = weakref.finalize(self, _end, self._process, self._directory)
        except BaseException:
            self._directory.release()
            raise
        try:
            self.http, self.grpc, metrics = map(_reachable, self._process.wait_until_serving())
            self.metrics = f"http://{metrics}/metrics"
            for name in self.models:
                self.load(name)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """True until the mesh ends."""
        return self._process.is_running

    @property
    def client(self) -> Client:
        """Client of the mesh."""
        if self._client is None:
            from nereid.app.client import Client  # noqa: PLC0415 - not while the mesh starts

            self._client = Client(self.grpc)
        return self._client

    @property
    def aclient(self) -> AsyncClient:
        """Client of the mesh for coroutines."""
        if self._aclient is None:
            from nereid.app.client import AsyncClient  # noqa: PLC0415 - not while the mesh starts

            self._aclient = AsyncClient(self.grpc)
        return self._aclient

    def load(self, name: str) -> None:
        """Load a model as it is in the repository now, and wait; raise MeshError if that fails."""
        self._change("load", name)

    def unload(self, name: str) -> None:
        """Unload a model; raise MeshError if the mesh has ended."""
        self._change("unload", name)

    def update(self, model: Model) -> None:
        """Serve a changed or new model in place of the one of its name; raise MeshError."""
        write_model(self.repository, model)
        self.load(model.name)

    def save(self, path: str | Path) -> Path:
        """Write the repository that `nereid serve --model-repository` takes anywhere."""
        write_models(Path(path), self._sources, complete=True)
        return Path(path)

    def _change(self, change: str, name: str) -> None:
        connection = http.client.HTTPConnection(self.http)
        try:
            connection.request(
                "POST", f"/v2/repository/models/{quote(name, safe='')}/{change}", "{}"
            )
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise MeshError(f"the mesh has ended:\n{self._process.tail()}") from error
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            text = body.decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError, TypeError):
                text = json.loads(text)["error"]
            raise MeshError(f"model '{name}' did not {change}: {text}")

    def wait(self) -> int:
        """Wait until the mesh ends, and return its exit code."""
        return self._process.wait()

    def stop(self) -> None:
        """End the mesh and its processes; the repository and the log go as well."""
        if self._client is not None:
            self._client.close()
        self._finalizer()


class MeshProcess:
    """`nereid serve`, and the thread that reads its output."""

    def __init__(
        self, argv: Sequence[str], log: Path, on_line: Callable[[str], object] | None
    ) -> None:
        self._argv, self._log, self._on_line = argv, log, on_line
        self._addresses: list[str] = []
        self._known = threading.Event()
        self._started = threading.Event()
        self._failure: BaseException | None = None
        # The kernel ends the mesh with the thread that starts it: this one lives as long as both.
        self._thread = threading.Thread(target=self._run, name="nereid-mesh", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise MeshError(f"nereid serve cannot be started: {self._failure}")

    def _run(self) -> None:
        program = [sys.executable, "-P", "-m", "nereid.app.child", str(os.getpid())]
        try:
            self._popen = subprocess.Popen(
                [*program, *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # Ctrl-C is for this process, which ends the mesh.
                start_new_session=True,
            )
        except OSError as error:
            self._failure = error
            return
        finally:
            self._started.set()
        assert self._popen.stdout is not None, "it is a pipe"
        with self._popen.stdout as output, self._log.open("w") as log:
            for line in output:
                log.write(line)
                log.flush()
                if self._on_line is not None:
                    self._on_line(line)
                if not self._known.is_set() and (found := _SERVING.search(line)):
                    self._addresses = list(found.groups())
                    self._known.set()
        self._popen.wait()
        self._known.set()

    def wait_until_serving(self) -> list[str]:
        """Return the addresses of HTTP, gRPC and metrics; raise MeshError if it does not serve."""
        self._known.wait(_START_S)
        if not self._addresses:
            raise MeshError(f"nereid serve does not serve:\n{self.tail()}")
        return self._addresses

    @property
    def is_running(self) -> bool:
        """True until the process ends."""
        return self._popen.poll() is None

    def tail(self) -> str:
        """Return the end of the log."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-_TAIL:])

    def wait(self) -> int:
        """Wait until the process ends, and return its exit code."""
        self._thread.join()
        return self._popen.returncode

    def end(self) -> None:
        """End the process; kill it if it takes too long."""
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(_STOP_S)
        except BaseException:
            # A second Ctrl-C as well: nothing may be left.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()
            raise
        finally:
            self._thread.join(_STOP_S)


@overload
def serve(
    *models: Source,
    wait: Literal[False],
    host: str = "127.0.0.1",
    flags: Sequence[str] = (),
) -> Mesh: ...


@overload
def serve(
    *models: Source,
    wait: Literal[True] = True,
    host: str = "127.0.0.1",
    ports: Sequence[int] = (8000, 8001, 8002),
    flags: Sequence[str] = (),
) -> None: ...


def serve(
    *models: Source,
    wait: bool = True,
    host: str = "127.0.0.1",
    ports: Sequence[int] = (8000, 8001, 8002),
    flags: Sequence[str] = (),
) -> Mesh | None:
    """Serve models: decorated functions, `.onnx` files, folders of models.

    wait=True blocks until Ctrl-C and prints what it serves. wait=False returns the running mesh, on
    free ports, to be used in a `with` block. Raise MeshError if a model does not load.
    """
    end_loading()
    if not wait:
        return Mesh(models, host=host, flags=flags)
    with (
        contextlib.suppress(KeyboardInterrupt),
        Mesh(models, host=host, ports=Ports(*ports), flags=flags, on_line=print_line) as mesh,
    ):
        code = mesh.wait()
        if code:
            raise MeshError(f"nereid serve ended with exit code {code}")
    return None


def print_line(line: str) -> None:
    """Print a line of the mesh's output."""
    sys.stdout.write(line)
    sys.stdout.flush()


def _end(process: MeshProcess, directory: TemporaryDirectory) -> None:
    try:
        process.end()
    except subprocess.TimeoutExpired:
        pass
    finally:
        directory.release()


def _reachable(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "::", "[::]") else address
