"""Tensors of single requests as numpy arrays, for a RequestModel in the executor's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.backends.request_model import Response
from nereid.core.errors import InvalidArgument, Unavailable
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.tensors import NUMPY_TYPE, from_raw, to_raw
from nereid.core.wire.messages import ErrorStatus
from nereid.pb import kserve_pb2
from nereid.shm.mappings import SegmentLostError, read
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.backends.backend import InstanceSpec
    from nereid.backends.request_model import Request
    from nereid.core.errors import NereidError
    from nereid.core.tensors.tensors import Array


class RequestArrays:
    """Reads the requests to one model, and creates its responses. Any thread may use it."""

    def __init__(self, spec: InstanceSpec) -> None:
        config = spec.config
        self._name, self._version = config.name, str(spec.version)
        self._datatypes = {
            tensor.name: NAME_OF_CONFIG_NUMBER[tensor.data_type] for tensor in config.output
        }

    def read_inputs(self, request: Request) -> dict[str, Array]:
        """Return the inputs of a request by name.

        BF16 inputs have the dtype uint16; the elements of BYTES inputs are `bytes`. Raises
        InvalidArgument if a tensor does not fill its shape, Unavailable if shared memory is lost.
        """
        arrays = {}
        for (name, datatype, shape), tensor in zip(
            request.spec.inputs, request.tensors, strict=True
        ):
            try:
                raw = read(tensor) if isinstance(tensor, SharedMemory) else tensor
            except SegmentLostError as error:
                raise Unavailable(
                    f"the request's data in shared memory was lost: {error}", accepted=True
                ) from error
            arrays[name] = from_raw(raw, datatype, shape)
        return arrays

    def make_response(
        self, request: Request, member: int, outputs: Mapping[str, Array], *, more: bool
    ) -> Response:
        """Return a response with only the outputs that the request asks for.

        member: index of the request in its batch. The arrays have the shapes that clients see: a
        model with `reshape` applies nereid.model_config.reshapes first. Raises InvalidArgument for
        a wrong datatype.
        """
        head = kserve_pb2.ModelInferResponse(model_name=self._name, model_version=self._version)
        tensors = []
        for name in request.spec.outputs:
            array = outputs.get(name)
            if array is None:
                continue
            datatype = self._datatypes[name]
            expected = NUMPY_TYPE[datatype]
            if array.dtype != expected and not (expected.hasobject and array.dtype.kind in "SU"):
                raise InvalidArgument(
                    f"output '{name}' of model '{self._name}' is an array of {array.dtype}, "
                    f"expected {datatype}"
                )
            head.outputs.add(name=name, datatype=datatype, shape=array.shape)
            tensors.append(to_raw(array))
        return Response(member, more, None, head.SerializeToString(), tensors)


def error_response(member: int, error: NereidError) -> Response:
    """Return the error response that ends a failed request."""
    return Response(member, more=False, error_status=ErrorStatus(error.code, error.message, True))
