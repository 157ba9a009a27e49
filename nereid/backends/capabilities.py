"""Declarations of what a model and a backend can do beyond the basic contract.

A model or a backend has its declaration as an attribute `capabilities`. The defaults suit a plain
model, which needs no declaration. The executor reads each declaration once, after the load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Capabilities of a loaded model."""

    #: True if the model is a RequestModel. It then gets the requests of a batch one by one and
    #: responds to each in its own time, any number of times if its configuration says `decoupled`.
    executes_requests: bool = False
    #: True if the RequestModel is a ReadinessReporter as well.
    decides_readiness: bool = False
    #: Number of batches that a PipelinedModel accepts before one of them must be collected; 0 for
    #: any other model.
    pipeline_depth: int = 0
    #: True if BYTES inputs are to arrive as `str`. Requests whose elements are not UTF-8 are then
    #: refused.
    bytes_as_text: bool = False
    #: True if the model accepts surrogates (`surrogateescape`) in place of bytes that are not
    #: UTF-8, so that no request is refused because of such bytes.
    escapes_bytes: bool = False
    #: True if the model neither writes to its inputs nor keeps or returns them, and does not use
    #: its outputs again. A state that the model wrote for a sequence then becomes its next input
    #: without a copy. Small requests that are executed alone and have the same head then get their
    #: inputs in the same arrays each time.
    leaves_arrays: bool = False
    #: Key: an output. Value: the ragged input whose shapes split the output. Outputs that a
    #: `batch_output` of the configuration names need no entry.
    ragged_outputs: Mapping[str, str] = field(default_factory=dict)
    #: Bytes of host memory that the model takes. `None` means that the executor measures the growth
    #: of its own process during the load.
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class BackendCapabilities:
    """Capabilities of a backend."""

    #: True if the backend is a ModelCodeBackend, so describing a model may run the author's code.
    runs_model_code: bool = False


_PLAIN_MODEL: Final = Capabilities()
_PLAIN_BACKEND: Final = BackendCapabilities()


def capabilities_of(model: object) -> Capabilities:
    """Return the capabilities that a loaded model declares, or the defaults."""
    declared = getattr(model, "capabilities", _PLAIN_MODEL)
    if not isinstance(declared, Capabilities):
        raise TypeError(f"`capabilities` of {type(model).__name__} is no Capabilities: {declared}")
    return declared


def backend_capabilities_of(backend: object) -> BackendCapabilities:
    """Return the capabilities that a backend declares, or the defaults."""
    declared = getattr(backend, "capabilities", _PLAIN_BACKEND)
    if not isinstance(declared, BackendCapabilities):
        raise TypeError(f"`capabilities` of {backend} is no BackendCapabilities: {declared}")
    return declared
