"""Declarations of what a model and a backend can do beyond the plain contract.

A model or a backend has its declaration as an attribute `capabilities`. The defaults are right for
a plain model, which needs no declaration. The executor reads each of them once, after the load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Capabilities of a loaded model."""

    #: The model is a RequestModel: it gets the requests of a batch one by one, and responds to each
    #: in its own time, any number of times if its configuration says `decoupled`.
    executes_requests: bool = False
    #: The RequestModel is a ReadinessReporter as well.
    decides_readiness: bool = False
    #: The model is a PipelinedModel if this is above 0: the number of batches that it takes before
    #: one has to be collected.
    pipeline_depth: int = 0
    #: BYTES inputs arrive as `str`. Requests whose elements are not UTF-8 are refused.
    bytes_as_text: bool = False
    #: The model accepts surrogates (`surrogateescape`) for bytes that are not UTF-8, so that no
    #: request is refused for them.
    escapes_bytes: bool = False
    #: Another thread may call execute() while the instance's own thread does nothing:
    #: `nereid serve --join all` saves the hand-over between threads then.
    any_thread: bool = False
    #: The model neither writes to its inputs nor keeps or returns them, and does not use its
    #: outputs again. The state that it wrote for a sequence is its next input without a copy then,
    #: and small lone requests with one head get their inputs in the same arrays each time.
    leaves_arrays: bool = False
    #: Outputs that are split by the shapes of a ragged input, by output, where no `batch_output` of
    #: the configuration says so.
    ragged_outputs: Mapping[str, str] = field(default_factory=dict)
    #: Bytes that the model takes on its host. Without a figure the executor measures by how much
    #: its own process grows during the load.
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class BackendCapabilities:
    """Capabilities of a backend."""

    #: The backend is a ModelCodeBackend: describing a model may run code of the model's author.
    runs_model_code: bool = False


_PLAIN_MODEL: Final = Capabilities()
_PLAIN_BACKEND: Final = BackendCapabilities()


def capabilities_of(model: object) -> Capabilities:
    """Return what a loaded model declares, or the defaults."""
    declared = getattr(model, "capabilities", _PLAIN_MODEL)
    if not isinstance(declared, Capabilities):
        raise TypeError(f"`capabilities` of {type(model).__name__} is no Capabilities: {declared}")
    return declared


def backend_capabilities_of(backend: object) -> BackendCapabilities:
    """Return what a backend declares, or the defaults."""
    declared = getattr(backend, "capabilities", _PLAIN_BACKEND)
    if not isinstance(declared, BackendCapabilities):
        raise TypeError(f"`capabilities` of {backend} is no BackendCapabilities: {declared}")
    return declared
