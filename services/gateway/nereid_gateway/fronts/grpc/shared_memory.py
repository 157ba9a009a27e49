"""Clients' shared memory over gRPC: methods that register regions, and parameters of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument
from nereid.pb import kserve_pb2 as pb
from nereid_gateway.core.tensors.region_ranges import RegionRange, RegionRanges
from nereid_gateway.plane.client_shm.cuda import open_cuda
from nereid_gateway.plane.client_shm.regions import CUDA, SYSTEM, Registration
from nereid_gateway.plane.client_shm.system import open_system

if TYPE_CHECKING:
    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.request_head import CheckedHead
    from nereid_gateway.plane.client_shm.regions import Regions

_REGION: Final = "shared_memory_region"
_OFFSET: Final = "shared_memory_offset"
_SIZE: Final = "shared_memory_byte_size"
# Triton reads a negative number as a very large positive one.
_UINT64_END: Final = 1 << 64


def region_use(message: pb.ModelInferRequest, regions: Regions) -> RegionRanges | None:
    """Return the ranges of regions that a request names, or None if it names none.

    As on Triton, inputs are checked first. Raises NereidError if a range is wrong.
    """
    inputs: list[tuple[int, RegionRange]] = []
    outputs: list[tuple[str, RegionRange]] = []
    for position, tensor in enumerate(message.inputs):
        place = _range(tensor)
        if place is None:
            continue
        if tensor.HasField("contents"):
            raise InvalidArgument(
                "unexpected 'content' provided when using shared memory for input tensor"
                f" '{tensor.name}' for model '{message.model_name}'"
            )
        regions.find_region(place)
        inputs.append((position, place))
    for output in message.outputs:
        place = _range(output)
        if place is not None:
            wanted = output.parameters
            if "classification" in wanted and wanted["classification"].int64_param > 0:
                raise InvalidArgument(
                    "output can't set both 'shared_memory_region' and 'classification'"
                )
            regions.find_region(place)
            outputs.append((output.name, place))
    return RegionRanges(tuple(inputs), tuple(outputs)) if inputs or outputs else None


def _range(tensor: Any) -> RegionRange | None:
    parameters = tensor.parameters
    if not parameters:
        return None
    if _REGION not in parameters:
        for key in (_OFFSET, _SIZE):
            if key in parameters:
                raise InvalidArgument(
                    f"'{key}' can not be specified without '{_REGION}' parameter for tensor"
                    f" '{tensor.name}'"
                )
        return None
    region = _value(tensor, _REGION, "string_param")
    offset = _value(tensor, _OFFSET, "int64_param") if _OFFSET in parameters else 0
    if _SIZE not in parameters:
        raise InvalidArgument(
            f"'{_SIZE}' must be specified along with '{_REGION}' parameter for tensor"
            f" '{tensor.name}'"
        )
    size_bytes = _value(tensor, _SIZE, "int64_param")
    return RegionRange(region, offset % _UINT64_END, size_bytes % _UINT64_END)


def _value(tensor: Any, key: str, kind: str) -> Any:
    parameter = tensor.parameters[key]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidArgument(
            f"invalid value type for '{key}' parameter for tensor '{tensor.name}', expected {kind}."
        )
    return getattr(parameter, kind)


def place_payloads(
    request: ClientRequest, checked: CheckedHead, used: RegionRanges, model: str
) -> None:
    """Assign the message's payloads to the inputs. An input in shared memory gets an empty payload.

    Raises InvalidArgument if there are too few payloads.
    """
    elsewhere = {position for position, _ in used.inputs}
    inline = iter(request.payloads)
    payloads = []
    for position, name in enumerate(checked.input_names):
        payload = b"" if position in elsewhere else next(inline, None)
        if payload is None:
            raise InvalidArgument(
                f"unable to find data for input tensor '{name}' for model '{model}' in request."
            )
        payloads.append(payload)
    request.payloads = payloads


class SharedMemoryMethods:
    """Handlers of the methods for system and CUDA memory. Messages are serialised."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    async def system_register(self, message: bytes) -> bytes:
        """Register a range of a POSIX shared-memory object."""
        self._regions.check_allowed()
        request = pb.SystemSharedMemoryRegisterRequest.FromString(message)
        about = Registration(SYSTEM, request.name, request.byte_size, request.key, request.offset)
        self._regions.register(about, lambda: open_system(about))
        return b""

    async def cuda_register(self, message: bytes) -> bytes:
        """Register the memory that a CUDA IPC handle refers to."""
        self._regions.check_allowed()
        request = pb.CudaSharedMemoryRegisterRequest.FromString(message)
        about = Registration(
            CUDA,
            request.name,
            request.byte_size,
            device_id=request.device_id,
            handle=request.raw_handle,
        )
        self._regions.register(about, lambda: open_cuda(about, about.handle))
        return b""

    async def system_status(self, message: bytes) -> bytes:
        """Return all system regions, or the one that the message names."""
        request = pb.SystemSharedMemoryStatusRequest.FromString(message)
        system = pb.SystemSharedMemoryStatusResponse()
        for region in self._regions.status(SYSTEM, request.name):
            status = system.regions[region.name]
            status.name, status.key = region.name, region.key
            status.offset, status.byte_size = region.offset, region.size_bytes
        return system.SerializeToString()

    async def cuda_status(self, message: bytes) -> bytes:
        """Return all CUDA regions, or the one that the message names."""
        request = pb.CudaSharedMemoryStatusRequest.FromString(message)
        cuda = pb.CudaSharedMemoryStatusResponse()
        for region in self._regions.status(CUDA, request.name):
            status = cuda.regions[region.name]
            status.name, status.byte_size = region.name, region.size_bytes
            status.device_id = region.device_id
        return cuda.SerializeToString()

    async def system_unregister(self, message: bytes) -> bytes:
        """Unregister the system region that the message names, or all if it names none."""
        self._regions.unregister(
            SYSTEM, pb.SystemSharedMemoryUnregisterRequest.FromString(message).name
        )
        return b""

    async def cuda_unregister(self, message: bytes) -> bytes:
        """Unregister the CUDA region that the message names, or all if it names none."""
        self._regions.unregister(
            CUDA, pb.CudaSharedMemoryUnregisterRequest.FromString(message).name
        )
        return b""
