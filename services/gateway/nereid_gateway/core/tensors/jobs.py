"""Types of the jobs of decoder processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    # Runs in the process. It takes the blobs and the arguments, and returns a value and blobs.
    JobFunction = Callable[..., tuple[Any, Sequence["Blob"]]]


Blob = bytes | memoryview


class RunJob(Protocol):
    """Runs jobs for one client: `DecoderPool.run` without the parameter peer."""

    def __call__(
        self, function: JobFunction, *arguments: Any, blobs: Sequence[Blob] = ()
    ) -> Awaitable[tuple[Any, Sequence[Any]]]:
        """Run a job as `DecoderPool.run` does."""
