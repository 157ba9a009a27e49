"""Jobs of decoder processes, as those see them who have one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    # Runs in the process: takes the blobs and the arguments, returns a value and blobs.
    JobFunction = Callable[..., tuple[Any, Sequence["Blob"]]]


Blob = bytes | memoryview


class RunJob(Protocol):
    """The function `DecoderPool.run` on behalf of one peer."""

    def __call__(
        self, function: JobFunction, *arguments: Any, blobs: Sequence[Blob] = ()
    ) -> Awaitable[tuple[Any, Sequence[Any]]]:
        """Run a job as `DecoderPool.run` does."""
