"""Types of the jobs of decoder processes, for the callers that have a job run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    # Function that runs in the process. It takes the blobs and the arguments, and returns a value
    # and blobs.
    JobFunction = Callable[..., tuple[Any, Sequence["Blob"]]]


Blob = bytes | memoryview


class RunJob(Protocol):
    """Runs jobs for one client. It is `DecoderPool.run` without the parameter peer."""

    def __call__(
        self, function: JobFunction, *arguments: Any, blobs: Sequence[Blob] = ()
    ) -> Awaitable[tuple[Any, Sequence[Any]]]:
        """Run a job as `DecoderPool.run` does."""
