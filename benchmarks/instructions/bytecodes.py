"""Runs the module of a service, and counts its calls and bytecodes by function on request.

Usage as a program: `python -m benchmarks.instructions.bytecodes SOCKET MODULE ARGUMENT...`. A
connection to the unix socket SOCKET starts the counting. When the client shuts down its side of the
connection, it gets the counts as JSON. Frames that were entered before the start, such as a
thread's main loop, are not counted.
"""

import json
import runpy
import socket
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypedDict

# Number of calls at the beginning that are recorded one by one.
_RECORDED_CALLS = 2000
_DIRECTORY = str(Path(__file__).parents[2]) + "/"


class Counts(TypedDict):
    """The counts of a process.

    calls, bytecodes: map a Python function to its count. native: maps the name of a built-in
    function to its number of calls. path: the first calls in order, each with its depth.
    """

    calls: dict[str, int]
    bytecodes: dict[str, int]
    native: dict[str, int]
    path: list[tuple[int, str]]


class CallCounter:
    """Counter of all threads that begin after install()."""

    def __init__(self) -> None:
        self._counting = False
        self._clear()

    def install(self) -> None:
        """Count in all threads that begin from now on."""
        threading.settrace(self._on_call)
        threading.setprofile(self._on_profile)
        sys.settrace(self._on_call)
        sys.setprofile(self._on_profile)

    def start(self) -> None:
        """Start counting from zero."""
        self._clear()
        self._counting = True

    def stop(self) -> Counts:
        """Stop counting, and return the counts."""
        self._counting = False
        return Counts(
            calls=_by_name(self._calls),
            bytecodes=_by_name(self._bytecodes),
            native=dict(self._native),
            path=[(depth, _name(code)) for depth, code in self._path],
        )

    def _clear(self) -> None:
        self._calls: Counter[CodeType] = Counter()
        self._bytecodes: Counter[CodeType] = Counter()
        self._native: Counter[str] = Counter()
        self._path: list[tuple[int, CodeType]] = []

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG002
        if not self._counting:
            return None
        code = frame.f_code
        self._calls[code] += 1
        if len(self._path) < _RECORDED_CALLS:
            self._path.append((_depth(frame), code))
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._on_bytecode

    def _on_bytecode(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG002
        if event == "opcode":
            self._bytecodes[frame.f_code] += 1
        return self._on_bytecode

    def _on_profile(self, frame: FrameType, event: str, argument: Any) -> None:  # noqa: ARG002
        if event == "c_call" and self._counting:
            self._native[getattr(argument, "__qualname__", repr(argument))] += 1


def command(path: Path, argv: Sequence[str]) -> list[str]:
    """Return a command that runs `-m MODULE ARGUMENT...` of the interpreter under the counter."""
    # Without -P the counted module would execute itself anew, without the counter.
    module = argv.index("-m") + 1
    return [sys.executable, "-P", "-m", __name__, str(path), *argv[module:]]


def counts_of(connection: socket.socket) -> Counts:
    """End the counting, and return the counts."""
    connection.shutdown(socket.SHUT_WR)
    with connection.makefile() as text:
        counts: Counts = json.load(text)
    return counts


def _depth(frame: FrameType) -> int:
    depth, outer = 0, frame.f_back
    while outer is not None:
        depth, outer = depth + 1, outer.f_back
    return depth


def _name(code: CodeType) -> str:
    return f"{code.co_filename.removeprefix(_DIRECTORY)}:{code.co_qualname}"


def _by_name(counts: Counter[CodeType]) -> dict[str, int]:
    named: Counter[str] = Counter()
    for code, count in counts.items():
        named[_name(code)] += count
    return dict(named)


def _serve(listener: socket.socket, counter: CallCounter) -> None:
    sys.settrace(None)
    sys.setprofile(None)
    while True:
        connection, _ = listener.accept()
        with connection:
            counter.start()
            connection.sendall(b"\n")
            connection.recv(1)
            connection.sendall(json.dumps(counter.stop()).encode())


def main() -> None:
    """Run the module that argv names, and serve its counts."""
    path, module, *arguments = sys.argv[1:]
    counter = CallCounter()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_serve, args=(listener, counter), daemon=True).start()
    sys.argv = [module, *arguments]
    counter.install()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
