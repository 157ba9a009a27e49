"""A request as functions of PyTriton's kind get it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Request(dict[str, Any]):
    """Arrays of one request by name, with its parameters."""

    def __init__(
        self, data: Mapping[str, Any], parameters: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(data)
        self.parameters = dict(parameters or {})

    @property
    def data(self) -> dict[str, Any]:
        """Arrays by name."""
        return self
