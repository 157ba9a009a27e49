"""Possible outcomes of a job in a decoder process."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# The process had no memory for a frame.
OUT_OF_MEMORY_EXIT_CODE: Final = 77


class Result(NamedTuple):
    """The job returned this value. Its blobs follow in the frame."""

    value: Any


class Refused(NamedTuple):
    """The job raised a NereidError."""

    code: int
    message: str
    accepted: bool


class OutOfMemory(NamedTuple):
    """The job needed more memory than the process may have."""


class Crashed(NamedTuple):
    """The job crashed the process, and would do so again."""

    reason: str


class Failed(NamedTuple):
    """The job raised another exception, which is a bug, or the process could not run the job."""

    details: str


class Lost(NamedTuple):
    """The process was killed while it had the job, or it could not be started."""

    reason: str


Outcome = Result | Refused | OutOfMemory | Crashed | Failed | Lost
