"""The contract between the executor and what loads and runs model files, and who fulfils it.

A backend is a module with the functions of Backend; it is imported when first used, since model
runtimes are large. Backends know nothing of the scheduler. There are two kinds of models: most get
whole batches as numpy arrays (BF16 as uint16, BYTES as object arrays) and give such arrays back,
and know nothing of requests (Model). Others get the requests of a batch as they are, each with its
own tensors as bytes, and answer each by itself, in their own time (RequestModel).
docs/backends.md is the contract in full, for whoever writes one.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast, runtime_checkable

from nereid.core.errors import Internal, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path
    from threading import Event

    from nereid.core.classification import Classification
    from nereid.core.errors import NereidError
    from nereid.core.messages import (
        ErrorStatus,
        InferRequest,
        InferResponse,
        Parameter,
        SharedMemory,
    )
    from nereid.core.tensors import Array
    from nereid.observability.tracing import Tracer
    from nereid.pb import model_config_pb2
    from nereid.services.executor.shared_tensors import Lender

_log = logging.getLogger(__name__)

# Where installed packages name the backends that they bring.
ENTRY_POINTS: Final = "nereid.backends"


class TensorDescription(NamedTuple):
    """A tensor as the model file states it; dims with the batch dimension, None: no rank stated."""

    name: str
    datatype: str
    dims: tuple[int, ...] | None
    optional: bool = False


class Description(NamedTuple):
    """What a model file says of itself."""

    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    # Set: the model completes its configuration itself, and nothing else is to be filled in.
    config: model_config_pb2.ModelConfig | None = None


# The file says nothing of itself: the configuration is taken as it is written.
UNSTATED: Final = Description((), ())


@dataclass(frozen=True, kw_only=True)
class InstanceSpec:
    """One instance to be loaded: which model, and on which device."""

    config: model_config_pb2.ModelConfig
    version: int
    version_path: Path
    name: str
    # Set: this GPU of the process (CUDA's number). None: the CPU.
    gpu: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    # The scheduler's number of it, and what it may ask for there. None: nothing.
    number: int = 0
    mesh: Mesh | None = None


class Model(Protocol):
    """A loaded model; used by its instance's thread alone."""

    description: Description
    # BYTES elements are handed over as str, and elements that are no UTF-8 are refused before.
    bytes_as_text: bool

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """The named outputs, in this order; raises NereidError if the model fails."""

    def close(self) -> None:
        """Free what the model holds."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestForm:
    """What alike requests have in common; one object for as long as such requests come."""

    # Name, datatype, and shape with the batch dimension.
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[str, ...]
    # The outputs wanted as classes; the runner makes them of the outputs.
    classes: Mapping[str, Classification] = field(default_factory=dict)


class Request(NamedTuple):
    """One request, for a RequestModel."""

    form: RequestForm
    # The inputs' raw bytes, in the form's order, or where they lie until the request is answered.
    tensors: Sequence[bytes | SharedMemory]
    request_id: str
    parameters: dict[str, Parameter]
    # W3C trace context in its binary form, or empty.
    trace_context: bytes
    # What is left of the client's deadline; 0: it has none.
    remaining_us: int
    # The client's limit on queueing.
    timeout_us: int
    # Where the answer's outputs may be put, if they fit in there.
    room: SharedMemory | None = None


class Response(NamedTuple):
    """One response to a request: a fault, or a ModelInferResponse's head and tensors."""

    # The request's place in its batch.
    member: int
    # Another will follow. A last one may have neither fault nor head.
    more: bool
    error_status: ErrorStatus | None = None
    head: bytes = b""
    # All of them in the request's room, or none.
    tensors: Sequence[bytes | memoryview | SharedMemory] = ()


class Collected(NamedTuple):
    """What a RequestModel has to say of a batch."""

    batch: int
    responses: Sequence[Response]
    # It has finished executing the batch and can have the next one.
    free: bool


class Asked(Protocol):
    """A request to the mesh, in the hands of the model's backend."""

    def tell(self, kind: str) -> None:
        """What has become of it here: cancel, pause or resume. From any thread."""


class Mesh(Protocol):
    """What models may ask of the mesh that they are served by. From any thread; what is passed to
    be called back is called from another one, and must not block.
    """

    # How many bytes a model's process may share with the mesh for its requests, and for how many
    # seconds it keeps what is free; None: it can share none.
    memory: tuple[int, float] | None

    def infer(self, request: InferRequest, on_response: Callable[[InferResponse], None]) -> Asked:
        """Have a request executed; on_answer hears all its answers. Who gets one that lies in a
        segment gives that back.
        """

    def give_back(self, segment_name: str) -> None:
        """Nobody reads the answer that lies in this segment any more."""

    def call(
        self, method: str, message: bytes, on_reply: Callable[[bytes | NereidError], None]
    ) -> None:
        """Call a control method of the scheduler's."""


@runtime_checkable
class AskedModel(Protocol):
    """A RequestModel that may know by itself whether it is ready."""

    @property
    def tells_ready(self) -> bool:
        """Whether it does, as it is loaded now."""

    def readiness_query(self, on_response: Callable[[bool], None]) -> None:
        """From any thread; on_answer is called from any, or never if the model does not answer."""


class LostError(Exception):
    """A RequestModel is gone, with all that it was executing."""


@runtime_checkable
class RequestModel(Protocol):
    """A loaded model that answers requests in its own time; used by its instance's thread alone."""

    # Requests may have any number of responses, also after the batch is executed.
    decoupled: bool
    # Batches may not take longer; None: as long as it takes.
    limit_s: float | None

    def descriptors(self) -> Sequence[int]:
        """One of them is readable when there is something to collect."""

    def begin(self, batch: int, requests: Sequence[Request]) -> None:
        """Hand a batch over.

        Raises:
            NereidError: the model cannot be given this batch; it goes on with others.
            LostError: it is gone.
        """

    def control(self, batch: int, member: int, kind: int) -> None:
        """Tell what has become of a request elsewhere; kinds as in MemberControl."""

    def collect(self, ready: Collection[int]) -> Iterator[Collected]:
        """What is there, without waiting; raises LostError at its end if the model is gone.

        ready: those of its descriptors that are readable.
        """

    def began(self, batch: int) -> bool:
        """Of a model that is gone: whether it may have seen this batch."""

    def give_up(self) -> None:
        """End it at once: it takes too long."""

    def revive(self, stopping: Event) -> bool:
        """Bring it back after it was lost, which may take long; False: stopping came first."""

    def close(self) -> None:
        """Free what the model holds."""


@dataclass(frozen=True)
class Errand:
    """What a model that serves its instance's stream itself needs for that."""

    # The scheduler's, and how to say there whose stream it is.
    address: str
    metadata: Sequence[tuple[str, str]]
    # Whether it shall come to an end, after the batch under way or, forsaken, before.
    stopping: Callable[[], bool]
    forsaken: Callable[[], bool]
    # Told when it is lost: the last batch that it had begun, and what is to be said of that.
    on_lost: Callable[[int, ErrorStatus], None]
    # None: it has no shared memory to put answers in; nothing is traced.
    lender: Lender | None
    tracer: Tracer | None


@runtime_checkable
class SelfServing(Protocol):
    """A RequestModel that may serve its instance's stream itself; see RequestModel for threads."""

    @property
    def begun(self) -> int:
        """The last batch that it began of those that came so; 0: there is none."""

    @property
    def serves_itself(self) -> bool:
        """Whether it can, as it is loaded now."""

    def serve(self, errand: Errand) -> None:
        """Until the stream ends or shall end.

        Raises:
            LostError: the model is gone, and on_lost was called.
            RpcError: the stream could not be opened, or broke.
        """

    def wake(self) -> None:
        """What the errand says has changed. From any thread."""


class Backend(Protocol):
    """What a backend's module offers."""

    def uses_gpus(self) -> bool:
        """Whether it can run models on a GPU, as installed here."""

    def describe(self, config: model_config_pb2.ModelConfig, version_path: Path) -> Description:
        """What the model file says of itself; raises NereidError if it cannot be read."""

    def load(self, spec: InstanceSpec) -> Model | RequestModel:
        """A model that is ready to run; raises NereidError."""


# Name: module, and the package that must be there for the module to work.
_MODULES = {
    "identity": ("nereid.services.executor.backends.identity", "numpy"),
    "onnxruntime": ("nereid.services.executor.backends.onnx.backend", "onnxruntime"),
    "openvino": ("nereid.services.executor.backends.openvino", "openvino"),
    "pytorch": ("nereid.services.executor.backends.pytorch.backend", "torch"),
    "python": ("nereid.services.executor.backends.python.backend", "numpy"),
    "tensorrt": ("nereid.services.executor.backends.tensorrt.backend", "tensorrt"),
}


# The model.py of each backend that is a folder with one.
_FILES: dict[str, Path] = {}


def look_in(directory: Path) -> None:
    """Offer the Python-based backends of a directory as well: <backend>/model.py."""
    found = sorted(directory.glob("*/model.py"))
    _FILES.update({path.parent.name: path for path in found})
    if not found:
        _log.warning("there are no Python-based backends (<backend>/model.py) in '%s'", directory)


def available() -> tuple[str, ...]:
    """The backends that are installed: Nereid's whose packages are there, and others'."""
    own = (name for name, (_, package) in _MODULES.items() if _is_there(package))
    return tuple(sorted({*own, *_FILES, *_packaged(tuple(sys.path))}))


def get(name: str) -> Backend:
    """The backend of this name. What was installed on purpose goes before what comes along.

    Raises:
        InvalidArgument: there is none, with Triton's words for it.
        Internal: there is one, and it cannot be imported.
    """
    if name not in available():
        raise InvalidArgument(
            f"unable to find backend library for backend '{name}', "
            "try specifying runtime on the model configuration."
        )
    packaged = _packaged(tuple(sys.path)).get(name)
    try:
        if packaged is not None:
            backend = packaged.load()
        elif name in _FILES:
            python_based = importlib.import_module(
                "nereid.services.executor.backends.python.python_based"
            )
            backend = python_based.PythonBased(_FILES[name])
        else:
            backend = importlib.import_module(_MODULES[name][0])
    except Exception as error:
        _log.exception("backend '%s' cannot be imported", name)
        raise Internal(f"unable to load backend library for backend '{name}': {error}") from error
    return cast("Backend", backend)


# Both read the whole environment, and every load of a model asks. What is installed later is found
# by an executor that is started later.
@cache
def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@cache
def _packaged(_path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """What the packages on this path bring."""
    return {each.name: each for each in entry_points(group=ENTRY_POINTS)}


def any_uses_gpus() -> bool:
    """Whether some backend can, as installed here; one that cannot be imported cannot."""
    return any(map(_uses_gpus, available()))


def _uses_gpus(name: str) -> bool:
    try:
        return get(name).uses_gpus()
    except Internal:
        return False
