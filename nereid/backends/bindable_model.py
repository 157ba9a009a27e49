"""Models that execute small requests in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.core.tensors import Array


@runtime_checkable
class BindableModel(Protocol):
    """A Model that can read its inputs from arrays that stay, and write its outputs to such."""

    def bind_arrays(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> Callable[[], None] | None:
        """What executes the model from these arrays to those, which the caller keeps; None: it
        cannot. It raises NereidErrors, also where an output turns out to have another shape.
        """
