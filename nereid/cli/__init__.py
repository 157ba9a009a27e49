"""The `nereid` command, which runs the commands that installed distributions declare."""

from __future__ import annotations

import os
import sys
from typing import Final

from nereid.cli.commands import GROUP, declared_commands, find_command

_NO_COMMANDS: Final = (
    f"nereid: no command is installed (no entry point of '{GROUP}' whose module exists):"
    " pip install 'nereid-mesh[serve]', or in a checkout: pip install --editable ."
)

# Exit code of a program that the signal SIGPIPE ends, which Python ignores.
CLOSED_PIPE: Final = 141
_INTERRUPTED: Final = 130
# A link of this name to the executable is `nereid serve`, which takes Triton's flags.
_TRITONSERVER: Final = "tritonserver"


def main() -> None:
    """Run the command that argv names, and return its exit code."""
    try:
        try:
            _main()
        finally:
            # Otherwise the interpreter meets a closed pipe at its end, and prints a traceback.
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED_PIPE)


def _main() -> None:
    if os.path.basename(sys.argv[0]) == _TRITONSERVER:  # noqa: PTH119 - pathlib takes 4 ms
        sys.argv[1:1] = ["serve"]
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("-V", "--version", "version"):
        # version() reads the metadata of packages, so import it only when needed.
        from nereid.version import is_compiled, version  # noqa: PLC0415

        print(f"nereid {version()} ({'compiled' if is_compiled() else 'pure Python'})")
        sys.exit(0)
    is_help = name in ("", "-h", "--help", "help")
    command = None if is_help else find_command(name)
    if command is not None:
        try:
            # Import only what this command needs, so that the process of `serve` stays small.
            run = command.load()
        except ModuleNotFoundError as error:
            needed = f"no module '{error.name}': pip install 'nereid-mesh[serve]'"
            sys.exit(f"nereid {name}: {needed}")
        sys.exit(run(sys.argv[2:]))
    if not is_help:
        print(f"nereid: unknown command '{name}'", file=sys.stderr)
    _print_usage()
    sys.exit(0 if name and is_help else 2)


def _print_usage() -> None:
    summaries: dict[str, str] = {}
    for command in declared_commands(sys.path):
        try:
            summaries.setdefault(command.name, command.summary())
        except ModuleNotFoundError:
            # An image with a single service has the metadata of all commands, but not their
            # modules.
            continue
    if not summaries:
        print(_NO_COMMANDS, file=sys.stderr)
    lines = [f"  nereid {name:11} {summary}" for name, summary in sorted(summaries.items())]
    print("usage: nereid COMMAND [FLAGS]   (nereid COMMAND --help lists a command's flags)")
    print(*lines, "  nereid --version", sep="\n")
