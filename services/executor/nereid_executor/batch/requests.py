"""Makes the requests of a model that executes single requests from a batch's requests."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.backends import Request, RequestSpec
from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Internal
from nereid.core.tensors.classification import requested_classifications
from nereid.core.wire.codecs import read_parameters
from nereid.pb import kserve_pb2
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.model_config.reshapes import Reshape
    from nereid_executor.batch.batch_reader import BatchRequest

# Heads differ by batch size and shape, which clients may vary without end.
_MAX_SPECS: Final = 1024
_new_tuple: Final = tuple.__new__


class RequestReader:
    """Reads the requests for one model."""

    def __init__(
        self, outputs: tuple[str, ...], reshapes: Mapping[str, Reshape] | None = None
    ) -> None:
        """Use these outputs if a request names none.

        reshapes: maps an input to the shapes before and after its reshape.
        """
        self._all_outputs = outputs
        self._reshapes = reshapes or {}
        self._specs: BoundedCache[bytes, RequestSpec] = BoundedCache(_MAX_SPECS)

    def read_request(self, member: BatchRequest, output_buffer: SharedMemory | None) -> Request:
        """Return a member as a request; raise Internal if the member is malformed."""
        head, tensors = member.head, member.tensors
        spec = self._specs.get(head) or self._specs.remember(head, self._read_head(head))
        if member.is_shared:
            tensors = [
                tensor
                if isinstance(tensor, bytes)
                else SharedMemory(tensor.segment_name, tensor.offset, tensor.size_bytes)
                for tensor in tensors
            ]
        if len(tensors) != len(spec.inputs):
            raise Internal(f"a request has {len(spec.inputs)} inputs but {len(tensors)} payloads")
        parameters = member.parameters
        # Building the tuple directly is faster than _make().
        return _new_tuple(
            Request,
            (
                spec,
                tensors,
                member.request_id,
                {} if parameters is None else read_parameters(parameters),
                member.trace_context,
                member.remaining_us,
                member.timeout_us,
                output_buffer,
            ),
        )

    def _read_head(self, head: bytes) -> RequestSpec:
        try:
            request = kserve_pb2.ModelInferRequest.FromString(head)
        except DecodeError as error:
            raise Internal("a batch member's head is no ModelInferRequest") from error
        inputs = tuple(
            (tensor.name, tensor.datatype, self._shape_for_model(tensor.name, tuple(tensor.shape)))
            for tensor in request.inputs
        )
        outputs = tuple(output.name for output in request.outputs) or self._all_outputs
        return RequestSpec(inputs, outputs, requested_classifications(request.outputs))

    def _shape_for_model(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        reshape = self._reshapes.get(name)
        return shape if reshape is None else reshape.apply(shape)
