"""What became of a job in a decoder process."""

from __future__ import annotations

from typing import Any, NamedTuple


class Result(NamedTuple):
    """The job's value; its blobs follow."""

    value: Any


class Refused(NamedTuple):
    """The job raised a NereidError."""

    code: int
    message: str
    accepted: bool


class OutOfMemory(NamedTuple):
    """The job needed more memory than the process may have."""


class Failed(NamedTuple):
    """The job raised something else: a bug, or the process could not run it."""

    details: str


class Lost(NamedTuple):
    """The process ended, or could not be started, while it had the job."""

    reason: str


Outcome = Result | Refused | OutOfMemory | Failed | Lost
