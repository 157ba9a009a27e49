"""Declarations of what a model and a backend can do; they are read once, after the load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.pb.model_config_pb2 import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Capabilities of a loaded model. The defaults suit a plain model."""

    #: True for a RequestModel. It gets the requests of a batch one by one. If its configuration
    #: says `decoupled`, it may respond to each any number of times.
    executes_requests: bool = False
    decides_readiness: bool = False
    #: Batches that a PipelinedModel accepts before one must be collected; 0 for other models.
    pipeline_depth: int = 0
    #: True if BYTES inputs arrive as `str`. Requests whose elements are not UTF-8 are then refused.
    bytes_as_text: bool = False
    #: True if the model accepts surrogates (`surrogateescape`) for bytes that are not UTF-8.
    escapes_bytes: bool = False
    #: True if the model does not write to, keep or return its inputs, and does not reuse its
    #: outputs. A sequence's state then becomes the next input without a copy. Small requests with
    #: the same head may get their inputs in the same arrays each time.
    leaves_arrays: bool = False
    #: Key: an output. Value: the ragged input whose shapes split the output. Outputs that a
    #: `batch_output` names need no entry.
    ragged_outputs: Mapping[str, str] = field(default_factory=dict)
    #: If `None`, the executor measures its own growth during the load.
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class BackendCapabilities:
    """Capabilities of a backend."""

    #: True if the backend is a ModelCodeBackend, so describing a model may run the author's code.
    runs_model_code: bool = False
    #: Returns whether a model with this configuration loads native code, plugins or files by its
    #: author's choice. With --sandbox-models, such a model has a confined process of its own.
    loads_native_code: Callable[[ModelConfig], bool] | None = None


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
