"""Ways for a request to a mesh and for its response back, each by NVIDIA's client."""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import grpc as grpc_channels
import ml_dtypes
import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, shared_memory

from tests.differential.case import Arrays, Case

# A result of a request, or the text of its error.
Result = dict[str, tuple[str, tuple[int, ...], np.ndarray[Any, np.dtype[Any]]]] | str
# Sends requests with the model's name, and returns a result for each, in their order.
Send = Callable[[str, Case, Sequence[Arrays]], list[Result]]
_ERROR_S = 60.0
_REGION_BYTES = 1 << 20
_WITHIN = {"client_timeout": _ERROR_S}
# Datatypes without a form in JSON and without typed contents.
_HALVES = frozenset({"FP16", "BF16"})
# By the kind of a datatype, the field of its typed contents.
_CONTENTS = {"BOOL": "bool", "INT64": "int64", "UINT64": "uint64", "FP32": "fp32", "FP64": "fp64"}
_CONTENTS |= {"BYTES": "bytes", "INT8": "int", "INT16": "int", "INT32": "int"}
_CONTENTS |= {"UINT8": "uint", "UINT16": "uint", "UINT32": "uint"}
_numbers = itertools.count()


class Clients:
    """One client for each protocol."""

    def __init__(self, http: str, grpc: str) -> None:
        self.http = tritonclient.http.InferenceServerClient(http, concurrency=8)
        self.grpc = tritonclient.grpc.InferenceServerClient(grpc)
        self.grpc_address = grpc
        self.channel = grpc_channels.insecure_channel(grpc)

    def close(self) -> None:
        self.channel.close()
        self.http.close()
        self.grpc.close()


def ways(clients: Clients) -> dict[str, tuple[Send, Callable[[Case], bool], bool]]:
    """Return each way by name: how it sends, which cases it can carry, and whether the requests
    are in flight together.
    """
    http, grpc = clients.http, clients.grpc

    def always(_: Case) -> bool:
        return True

    def grpc_alone(model: str, case: Case, requests: Sequence[Arrays]) -> list[Result]:
        return [
            _result(
                case,
                partial(grpc.infer, model, _inputs(tritonclient.grpc, case, arrays), **_WITHIN),
            )
            for arrays in requests
        ]

    def http_alone(
        model: str, case: Case, requests: Sequence[Arrays], *, binary: bool = True, **more: Any
    ) -> list[Result]:
        outputs = [
            tritonclient.http.InferRequestedOutput(name, binary_data=binary)
            for name, _, _ in case.outputs
        ]

        def infer(arrays: Arrays) -> Any:
            inputs = _inputs(tritonclient.http, case, arrays, binary_data=binary)
            return http.infer(model, inputs, outputs=outputs, **more)

        return [_result(case, partial(infer, arrays)) for arrays in requests]

    def http_json(model: str, case: Case, requests: Sequence[Arrays]) -> list[Result]:
        return http_alone(model, case, requests, binary=False)

    def http_gzip(model: str, case: Case, requests: Sequence[Arrays]) -> list[Result]:
        return http_alone(
            model,
            case,
            requests,
            request_compression_algorithm="gzip",
            response_compression_algorithm="gzip",
        )

    def together(model: str, case: Case, requests: Sequence[Arrays]) -> list[Result]:
        arrived: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
        for place, arrays in enumerate(requests):
            grpc.async_infer(
                model,
                _inputs(tritonclient.grpc, case, arrays),
                lambda result, error, place=place: arrived.put((place, result, error)),
            )
        return _in_order(case, arrived, len(requests))

    def stream(model: str, case: Case, requests: Sequence[Arrays]) -> list[Result]:
        arrived: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(clients.grpc_address) as own:
            own.start_stream(lambda result, error: arrived.put((0, result, error)))
            results = []
            for arrays in requests:
                own.async_stream_infer(model, _inputs(tritonclient.grpc, case, arrays))
                # Waits, as an error on a stream says nothing of the request that it is for.
                results += _in_order(case, arrived, 1)
            return results

    def regions(model: str, case: Case, requests: Sequence[Arrays]) -> list[Result]:
        return [_by_regions(grpc, model, case, arrays) for arrays in requests]

    stub = service_pb2_grpc.GRPCInferenceServiceStub(clients.channel)

    def contents(model: str, case: Case, requests: Sequence[Arrays]) -> list[Result]:
        def infer(arrays: Arrays) -> Any:
            return tritonclient.grpc.InferResult(
                stub.ModelInfer(_typed_request(model, case, arrays), timeout=_ERROR_S)
            )

        return [_result(case, partial(infer, arrays)) for arrays in requests]

    def fits_json(case: Case) -> bool:
        return case.fits_json and not case.datatypes & _HALVES and not case.is_large

    def fits_contents(case: Case) -> bool:
        halves = any(datatype in _HALVES for _, datatype, _ in case.inputs)
        return not halves and not case.is_large

    def fits_regions(case: Case) -> bool:
        # No region is empty.
        return not case.has_text and all(each.size for each in case.make_request(0).values())

    return {
        "grpc": (grpc_alone, always, False),
        "http": (http_alone, always, False),
        "json": (http_json, fits_json, False),
        "gzip": (http_gzip, always, False),
        "stream": (stream, always, False),
        "contents": (contents, fits_contents, False),
        "regions": (regions, fits_regions, False),
        "together": (together, always, True),
    }


def _inputs(client: Any, case: Case, arrays: Arrays, **more: Any) -> list[Any]:
    inputs = []
    for name, datatype, _ in case.inputs:
        if name not in arrays:
            continue
        tensor = client.InferInput(name, list(arrays[name].shape), datatype)
        tensor.set_data_from_numpy(arrays[name], **more)
        inputs.append(tensor)
    return inputs


def _typed_request(model: str, case: Case, arrays: Arrays) -> Any:
    """A request whose elements are numbers of protobuf, not bytes."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, datatype, _ in case.inputs:
        if name in arrays:
            tensor = request.inputs.add(name=name, datatype=datatype, shape=arrays[name].shape)
            field = getattr(tensor.contents, f"{_CONTENTS[datatype]}_contents")
            field.extend(arrays[name].ravel().tolist())
    return request


def _result(case: Case, infer: Callable[[], Any]) -> Result:
    try:
        return _read(case, infer())
    except (InferenceServerException, ValueError, grpc_channels.RpcError) as error:
        return str(error)


def _read(case: Case, result: Any) -> Result:
    read = {}
    for name, _, _ in case.outputs:
        output = result.get_output(name)
        if output is None:
            continue
        described = (
            (output["datatype"], output["shape"])
            if isinstance(output, dict)
            else (output.datatype, output.shape)
        )
        read[name] = (described[0], tuple(described[1]), np.array(result.as_numpy(name)))
    return read


def _in_order(case: Case, arrived: queue.Queue[tuple[int, Any, Any]], count: int) -> list[Result]:
    results: dict[int, Result] = {}
    for _ in range(count):
        place, result, error = arrived.get(timeout=_ERROR_S)
        results[place] = str(error) if error is not None else _result(case, partial(_own, result))
    return [results[place] for place in sorted(results)]


def _own(result: Any) -> Any:
    return result


def _by_regions(grpc: Any, model: str, case: Case, arrays: Arrays) -> Result:
    """With inputs and outputs in system shared memory of the client's."""
    with contextlib.ExitStack() as stack:
        inputs = []
        for name, datatype, _ in case.inputs:
            if name not in arrays:
                continue
            array = np.ascontiguousarray(arrays[name])
            region, handle = stack.enter_context(_region(grpc, array.nbytes))
            shared_memory.set_shared_memory_region(handle, [array])
            tensor = tritonclient.grpc.InferInput(name, list(array.shape), datatype)
            tensor.set_shared_memory(region, array.nbytes)
            inputs.append(tensor)
        outputs, handles = [], {}
        for name, _, _ in case.outputs:
            region, handles[name] = stack.enter_context(_region(grpc, _REGION_BYTES))
            wanted = tritonclient.grpc.InferRequestedOutput(name)
            wanted.set_shared_memory(region, _REGION_BYTES)
            outputs.append(wanted)
        try:
            result = grpc.infer(model, inputs, outputs=outputs)
        except InferenceServerException as error:
            return str(error)
        read = {}
        for name, handle in handles.items():
            output = result.get_output(name)
            dtype = _region_dtype(output.datatype)
            shape = tuple(output.shape)
            array = shared_memory.get_contents_as_numpy(handle, dtype, list(shape))
            read[name] = (output.datatype, shape, np.array(array))
        return read


def _region_dtype(datatype: str) -> Any:
    if datatype == "BF16":
        return ml_dtypes.bfloat16
    return tritonclient.utils.triton_to_np_dtype(datatype)


@contextlib.contextmanager
def _region(grpc: Any, byte_size: int) -> Iterator[tuple[str, Any]]:
    name = f"differential_{next(_numbers)}"
    handle = shared_memory.create_shared_memory_region(name, f"/{name}", byte_size)
    try:
        grpc.register_system_shared_memory(name, f"/{name}", byte_size)
        yield name, handle
    finally:
        grpc.unregister_system_shared_memory(name)
        shared_memory.destroy_shared_memory_region(handle)
