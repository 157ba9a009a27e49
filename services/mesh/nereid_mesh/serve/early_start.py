"""Start of the processes that a mesh most likely has, before the mesh's plan is made.

This module must import quickly. A wrong guess costs a process that ends unused.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from nereid_mesh.serve.child_process import StandbyProcess
from nereid_mesh.serve.programs import EXECUTOR, GATEWAY, JOINED, SCHEDULER, module_argv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BY_JOIN: Final = {
    "auto": (JOINED, EXECUTOR),
    "none": (GATEWAY, SCHEDULER, EXECUTOR),
    "scheduler": (JOINED, EXECUTOR),
}
_COUNTS: Final = ("executors", "gateways", "schedulers")
# These print and exit.
_PRINTS: Final = frozenset({"-h", "--help", "--help-all", "--print-config"})


def likely_programs(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the likely processes' modules, from the flags of `nereid serve`."""
    if _PRINTS & set(argv):
        return ()
    file = _value(argv, environ, {}, "config")
    table = _table(file) if file else {}
    if any(_value(argv, environ, table, name) not in ("", "1") for name in _COUNTS):
        # A standby keeps its argv, so `ps` could not tell several processes of a module apart.
        return ()
    return _BY_JOIN.get(_value(argv, environ, table, "join") or "auto", ())


def _table(file: str) -> Mapping[str, object]:
    from nereid.config.config_file import load  # noqa: PLC0415 - few command lines name a file

    try:
        return load(file)
    except ValueError:
        # The plan reports it.
        return {}


def _value(
    argv: Sequence[str], environ: Mapping[str, str], table: Mapping[str, object], name: str
) -> str:
    value = environ.get(f"NEREID_{name.upper()}", str(table.get(name, "")))
    for text, following in zip_longest(argv, argv[1:], fillvalue=""):
        flag, equals, given = text.partition("=")
        if flag == f"--{name}":
            value = given if equals else following
    return value


def start_likely_programs(argv: Sequence[str], environ: Mapping[str, str]) -> list[StandbyProcess]:
    """Start the likely processes. They import what they need, and then wait."""
    programs = likely_programs(argv, environ)
    return [StandbyProcess(module_argv(program)) for program in programs]
