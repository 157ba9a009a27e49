"""Outcomes of a job in a decoder process."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# Exit code of a process that has no memory for a frame.
OUT_OF_MEMORY_EXIT_CODE: Final = 77


class Result(NamedTuple):
    """Value that the job returned; its blobs follow in the frame."""

    value: Any


class Refused(NamedTuple):
    """The job raised a NereidError."""

    code: int
    message: str
    accepted: bool


class OutOfMemory(NamedTuple):
    """The job needed more memory than the process may have."""


class Crashed(NamedTuple):
    """The job ended the process, and would do so again."""

    reason: str


class Failed(NamedTuple):
    """The job raised another exception: a bug, or the process could not run it."""

    details: str


class Lost(NamedTuple):
    """The process was killed, or could not be started, while it had the job."""

    reason: str


Outcome = Result | Refused | OutOfMemory | Crashed | Failed | Lost
