"""Head of a request: the parts of a ModelInferRequest that are the same for many requests.

Equal requests over HTTP and gRPC have the same head. Services cache what they derive from a head,
with the head as the key. Each derived part has a cache of its own, because different events
invalidate it.
"""

# layout: compiled

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import BYTES
from nereid.core.tensors.shapes import MANY_ELEMENTS, MAX_RANK, bounded_count
from nereid.core.wire.messages import CLASSIFICATION
from nereid.pb import kserve_pb2
from nereid_gateway.core.tensors.string_elements import StringInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nereid_gateway.core.tensors.region_ranges import RegionRanges

CACHED_HEADS: Final = 2048
MAX_CACHED_HEAD_BYTES: Final = 8192
# Bytes. Every service reads heads on its event loop.
MAX_HEAD_BYTES: Final = 262144
# Limit for a request's inputs, for its outputs, and for its parameters.
MAX_COUNT: Final = 1024


class CheckedHead(NamedTuple):
    """Head that was checked, and the values that the check derived from it."""

    head: bytes
    input_names: tuple[str, ...]
    strings: tuple[StringInput, ...]
    # None if no tensor is in clients' shared memory.
    regions: RegionRanges | None = None


# A request with an error has this head.
NOTHING_CHECKED: Final = CheckedHead(b"", (), ())


def naming(model: str, version: str) -> bytes:
    """Return a head that names only a model, for requests that only report an error."""
    return kserve_pb2.ModelInferRequest(model_name=model, model_version=version).SerializeToString()


class HeadReader:
    """Reads the model's name, its version and the number of strings from heads, with a cache."""

    def __init__(self) -> None:
        self._known = BoundedCache[bytes, tuple[str, str, int]](CACHED_HEADS, MAX_CACHED_HEAD_BYTES)

    def model_of(self, head: bytes) -> str:
        """Return the name of the model that a head names."""
        return self.read(head)[0]

    def strings_of(self, head: bytes) -> int:
        """Return the number of elements in all inputs of type BYTES."""
        return self.read(head)[2]

    def read(self, head: bytes) -> tuple[str, str, int]:
        """Return the model's name, its version as in the head, and the number of strings."""
        known = self._known.get(head)
        if known is not None:
            return known
        message = kserve_pb2.ModelInferRequest.FromString(head)
        strings = sum(
            bounded_count(tensor.shape) for tensor in message.inputs if tensor.datatype == BYTES
        )
        return self._known.remember(head, (message.model_name, message.model_version, strings))


class HeadInput(NamedTuple):
    """Input as a head describes it."""

    name: str
    datatype: str
    shape: list[int]


def build(
    model: str,
    version: str,
    inputs: Iterable[HeadInput],
    outputs: Iterable[str],
    classes: Mapping[str, int] = MappingProxyType({}),
) -> CheckedHead:
    """Return the head of a request. Without outputs, it asks for all outputs.

    classes: maps an output to its number of classes. Raises InvalidArgument if a shape does not fit
    64 bits or the head is too large.
    """
    message = kserve_pb2.ModelInferRequest(model_name=model, model_version=version)
    strings = []
    names = []
    for index, (name, datatype, shape) in enumerate(inputs):
        if len(shape) > MAX_RANK:
            raise InvalidArgument(
                f"input '{name}' for model '{model}' has {len(shape)} dimensions, more than"
                f" {MAX_RANK}"
            )
        try:
            message.inputs.add(name=name, datatype=datatype, shape=shape)
        except ValueError as error:
            raise InvalidArgument(
                f"the shape of input '{name}' for model '{model}' is out of range"
            ) from error
        names.append(name)
        if datatype == BYTES and all(size >= 0 for size in shape):
            count = bounded_count(shape)
            # The scheduler refuses shapes that 64 bits do not count.
            if count < MANY_ELEMENTS:
                strings.append(StringInput(index, name, model, count))
    for name in outputs:
        output = message.outputs.add(name=name)
        if classes.get(name):
            output.parameters[CLASSIFICATION].int64_param = classes[name]
    head = message.SerializeToString()
    if len(head) > MAX_HEAD_BYTES:
        raise InvalidArgument(
            f"the names and shapes of a request for model '{model}' take {len(head)} bytes, more"
            f" than {MAX_HEAD_BYTES}"
        )
    return CheckedHead(head, tuple(names), tuple(strings))


def check_count(what: str, count: int, model: str) -> None:
    """Raise InvalidArgument for more inputs, outputs or parameters than any model has."""
    if count > MAX_COUNT:
        raise InvalidArgument(f"a request for model '{model}' has more than {MAX_COUNT} {what}")
