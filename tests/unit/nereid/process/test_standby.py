"""A process that stands by gets all that it serves with once it is needed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from nereid.process.standby import Activation, StandbySocket

LIMIT_S = 30
# Prints its arguments, a variable, and what is in the file that the variable names.
_PROGRAM = """
import json, os, sys
from nereid.process.standby import stand_by
{before}
stand_by(os.environ)
number = os.environ["FILE"]
print(json.dumps([sys.argv[1:], number, os.read(int(number), 9).decode(), sorted(os.environ)]))
"""


def start(standby: StandbySocket, before: str = "") -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(before=before), "early"],
        env={**os.environ, **standby.environ},
        pass_fds=standby.descriptors,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    standby.on_started()
    return process


def activate(standby: StandbySocket, argv: Sequence[str], file: int) -> None:
    os.write(file, b"content")
    os.lseek(file, 0, os.SEEK_SET)
    standby.activate(Activation(argv, {"FILE": str(file)}, (file,)))
    standby.close()


@pytest.fixture
def file() -> Iterator[int]:
    """A file with another number than the socket that a process stands by at."""
    descriptor = os.memfd_create("given")
    yield descriptor
    os.close(descriptor)


def test_it_serves_with_what_it_is_activated_with(file: int) -> None:
    standby = StandbySocket()
    with start(standby) as process:
        # Larger than a socket's buffer.
        argv = ["late", "x" * 1_000_000]
        activate(standby, argv, file)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    given, number, content, names = json.loads(output)
    assert given == argv
    assert int(number) == file
    assert content == "content"
    # Its children are none.
    assert "NEREID_STANDBY_FD" not in names


def test_it_ends_when_nobody_will_need_it() -> None:
    standby = StandbySocket()
    with start(standby) as process:
        standby.close()
        output, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output, errors) == (0, b"", b"")


def test_it_ends_rather_than_to_lose_a_file_of_its_own(file: int) -> None:
    standby = StandbySocket()
    with start(standby, f"[os.open('/dev/null', 0) for _ in range({file + 1})]") as process:
        activate(standby, [], file)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert b"is in use" in errors
