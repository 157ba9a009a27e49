"""Counts machine instructions by function in a running process, with valgrind's callgrind."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

# Calls of these functions say how often a process entered the kernel.
_SYSTEM_CALLS = re.compile(
    r"(epoll_p?wait|epoll_ctl|poll|read|readv|write|writev|recv|recvfrom|recvmsg|send|sendto|sendmsg)"
)
_ALLOCATIONS = ("_PyObject_Malloc", "_PyObject_Calloc", "_PyObject_Realloc", "malloc")
_COSTS = tuple("+-*0123456789")
_NAME = re.compile(r"\((\d+)\)(?: (.*))?")


@dataclass
class Profile:
    """Profile of a process.

    instructions: maps an object file and function to its instructions, without those of its
    callees. calls: maps a function to its number of calls.
    """

    instructions: Counter[tuple[str, str]] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Number of all instructions."""
        return self.instructions.total()

    def subtract(self, other: Self) -> None:
        """Subtract the counts of another profile."""
        self.instructions.subtract(other.instructions)
        self.calls.subtract(other.calls)

    def by_object(self) -> Counter[str]:
        """Return instructions by object file."""
        objects: Counter[str] = Counter()
        for (name, _), count in self.instructions.items():
            objects[name] += count
        return objects

    def by_function(self) -> Counter[str]:
        """Return instructions by function."""
        functions: Counter[str] = Counter()
        for (_, name), count in self.instructions.items():
            functions[name] += count
        return functions

    def system_calls(self) -> Counter[str]:
        """Return calls of functions that enter the kernel."""
        return Counter({k: v for k, v in self.calls.items() if _SYSTEM_CALLS.fullmatch(k)})

    @property
    def allocations(self) -> int:
        """Number of allocations."""
        return sum(self.calls[name] for name in _ALLOCATIONS)


def command(out: Path, argv: Sequence[str]) -> list[str]:
    """Return a command that runs argv under callgrind, with counting switched off.

    start_counting() and stop_counting() work on the process of this command.
    """
    return [
        "valgrind",
        "--tool=callgrind",
        "--instr-atstart=no",
        "-q",
        f"--callgrind-out-file={out}",
        *argv,
    ]


def start_counting(pid: int) -> None:
    """Start counting in a process."""
    _control(pid, "--instr=on")
    _control(pid, "--zero")


def stop_counting(pid: int, out: Path) -> Profile:
    """Stop counting, and return the profile since start_counting(); `out` as for command()."""
    before = set(out.parent.glob(out.name + "*"))
    _control(pid, "--dump")
    _control(pid, "--instr=off")
    (written,) = set(out.parent.glob(out.name + "*")) - before
    with written.open(errors="replace") as lines:
        return parse_profile(lines)


class _Names:
    """Names of a profile: each stands in full where it comes first, then as its number."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def resolve(self, text: str) -> str:
        """Return the name in full."""
        match = _NAME.match(text)
        if match is None:
            return text
        number, name = match.groups()
        return self._known.setdefault(number, (name or "?").strip())


def parse_profile(lines: Iterable[str]) -> Profile:
    """Parse an output file of callgrind."""
    profile = Profile()
    objects, functions = _Names(), _Names()
    object_name = function = called = ""
    inclusive = False
    for line in lines:
        key, equals, text = line.rstrip("\n").partition("=")
        if not equals:
            # A line of costs has positions, then instructions; after "calls=" those of the callee.
            if line[:1] in _COSTS and not inclusive:
                profile.instructions[object_name, function] += int(line.split()[-1])
            inclusive = False
        elif key in ("ob", "cob"):
            name = objects.resolve(text)
            object_name = Path(name).name if key == "ob" else object_name
        elif key == "fn":
            function = functions.resolve(text)
        elif key == "cfn":
            called = functions.resolve(text)
        elif key == "calls":
            # The name of a callee may have a version, and "'2" for a recursion.
            profile.calls[re.split("['@]", called)[0]] += int(text.split()[0])
            inclusive = True
    return profile


def _control(pid: int, option: str) -> None:
    subprocess.run(
        ["callgrind_control", option, str(pid)], check=True, capture_output=True, timeout=300
    )
