"""The command `nereid run`: serves the models of a Python file, and reloads them on change."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Final

from nereid.app.mesh import Mesh, MeshError, Ports, print_line
from nereid.app.repository import SourceError
from nereid_app.application import Application

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nereid.app.repository import Source
    from nereid_app.application import LoadedModel

SUMMARY: Final = "serve the models of a Python file, and reload them on change"
_POLL_S: Final = 0.3


def main(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C; return the exit code."""
    options, flags = make_parser().parse_known_args(argv)
    application = Application(options.path)
    try:
        loaded = application.load()
    except (SourceError, SyntaxError) as error:
        sys.stderr.write(f"nereid run: {_described(error)}\n")
        return 2
    except Exception:
        traceback.print_exc()
        return 2
    times = application.times(), application.other_times()
    ports = Ports(options.http_port, options.grpc_port, options.metrics_port)
    sources: list[Source] = [
        *(each.model for each in loaded.values()),
        *application.others,
    ]
    try:
        with (
            contextlib.suppress(KeyboardInterrupt),
            Mesh(sources, host=options.host, ports=ports, flags=flags, on_line=print_line) as mesh,
        ):
            if options.reload:
                reloads = Reloads(mesh, application, loaded, *times)
                threading.Thread(target=reloads.run, name="reload", daemon=True).start()
            return mesh.wait()
    except (MeshError, SourceError) as error:
        sys.stderr.write(f"nereid run: {error}\n")
        return 1
    return 0


class Reloads:
    """Looks for changed files, and has the mesh load the models that they change."""

    def __init__(
        self,
        mesh: Mesh,
        application: Application,
        loaded: dict[str, LoadedModel],
        times: Mapping[Path, int],
        other_times: Mapping[Path, int],
    ) -> None:
        self._mesh, self._application, self._loaded = mesh, application, loaded
        self._times, self._other_times = times, other_times

    def run(self) -> None:
        """Look until the mesh ends."""
        pause = threading.Event()
        while self._mesh.is_running:
            pause.wait(_POLL_S)
            self.look()

    def look(self) -> None:
        """Reload what has changed since the last look."""
        times = self._application.times()
        if times != self._times:
            self._times = times
            self._reload_functions()
        other_times = self._application.other_times()
        for path, changed_at in other_times.items():
            if changed_at != self._other_times.get(path):
                self._report(path.stem if path.is_file() else path.name, None)
        self._other_times = other_times

    def _reload_functions(self) -> None:
        try:
            loaded = self._application.load()
        except Exception as error:
            print_line(f"nereid run: {_described(error)}; the models stay as they were\n")
            return
        for name, each in loaded.items():
            if name not in self._loaded or self._loaded[name].digest != each.digest:
                self._report(name, each)
        for name in self._loaded.keys() - loaded.keys():
            self._mesh.unload(name)
            print_line(f"nereid run: '{name}' is unloaded: the file no longer defines it\n")
        self._loaded = loaded

    def _report(self, name: str, loaded: LoadedModel | None) -> None:
        try:
            if loaded is None:
                self._mesh.load(name)
            else:
                self._mesh.update(loaded.model)
        except (MeshError, SourceError) as error:
            print_line(f"nereid run: {error}; what it served before stays\n")
        else:
            print_line(f"nereid run: '{name}' is reloaded\n")


def _described(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    return str(error) if isinstance(error, SourceError) else f"{type(error).__name__}: {error}"


def make_parser() -> argparse.ArgumentParser:
    """Return the command's own flags."""
    parser = argparse.ArgumentParser(
        prog="nereid run",
        description="Serve the models that a Python file defines with @nereid.model.",
        epilog="Any flag of `nereid serve` may follow, as --NAME=VALUE.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "path", nargs="+", help="a Python file, an .onnx file, a model's folder or a repository"
    )
    parser.add_argument(
        "--reload", action="store_true", help="reload the models whose files change"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the interface; 0.0.0.0: all")
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        parser.add_argument(
            f"--{name}-port", type=int, default=port, metavar="N", help="0: a free one"
        )
    return parser
