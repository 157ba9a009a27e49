"""Clients with numpy in and out, sync and async, for any KServe v2 server over gRPC."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
import grpc.aio
import numpy as np

from nereid.app.repository import SCALAR, TEXT
from nereid.app.tensor import DTYPES
from nereid.core.tensors.byte_elements import join_bytes, split_bytes
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator, Mapping

    from nereid.pb.model_config_pb2 import ModelConfig

_SERVICE: Final = "/inference.GRPCInferenceService"
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]
_BF16: Final = np.dtype(np.uint16)


class InferenceError(RuntimeError):
    """The server refused or failed a request."""

    def __init__(self, text: str, status: str = "UNKNOWN") -> None:
        super().__init__(text)
        # The gRPC status, such as INVALID_ARGUMENT.
        self.status = status


class _Tensor(NamedTuple):
    datatype: str
    dtype: np.dtype[Any]
    is_scalar: bool
    is_text: bool
    is_optional: bool


class _Codec:
    """Turns arrays into a model's requests, and its responses into arrays."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        self.name = name
        self.streams = config.model_transaction_policy.decoupled
        self._is_batched = config.max_batch_size > 0
        text, scalar = (
            frozenset(config.parameters[key].string_value.split(",")) for key in (TEXT, SCALAR)
        )
        self._inputs = {each.name: _tensor(each, text, scalar) for each in config.input}
        self._outputs = {each.name: _tensor(each, text, scalar) for each in config.output}

    def request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return a request; raise TypeError if an input is missing, unknown or has another type."""
        if len(args) > len(self._inputs):
            raise TypeError(f"model '{self.name}' has {len(self._inputs)} inputs, not {len(args)}")
        values = {**dict(zip(self._inputs, args, strict=False)), **kwargs}
        for name in values:
            if name not in self._inputs:
                raise TypeError(f"'{name}' is no input of {self._signature()}")
        request = kserve_pb2.ModelInferRequest(model_name=self.name)
        for name, tensor in self._inputs.items():
            if name in values:
                array = self._array(name, tensor, values[name])
                request.inputs.add(name=name, datatype=tensor.datatype, shape=array.shape)
                raw = (
                    join_bytes(array.flat)
                    if tensor.datatype == "BYTES"
                    else np.ascontiguousarray(array).tobytes()
                )
                request.raw_input_contents.append(raw)
            elif not tensor.is_optional:
                raise TypeError(f"input '{name}' is missing: it is {self._signature()}")
        return request

    def result(self, response: Any) -> Any:
        """Return the only output, or all by name."""
        found = {}
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
            tensor = self._outputs.get(output.name)
            is_text = tensor is not None and tensor.is_text
            found[output.name] = _decoded(output.datatype, list(output.shape), raw, is_text=is_text)
            if tensor is not None and tensor.is_scalar and not self._is_batched:
                found[output.name] = found[output.name].item()
            elif tensor is not None and tensor.is_scalar:
                found[output.name] = found[output.name].reshape(-1)
        return next(iter(found.values())) if len(found) == 1 else found

    def _array(self, name: str, tensor: _Tensor, value: Any) -> np.ndarray[Any, Any]:
        is_array = isinstance(value, np.ndarray | np.generic)
        array = np.asarray(value, None if is_array else tensor.dtype)
        if tensor.datatype == "BYTES" and array.dtype.kind in "US":
            array = array.astype(object)
        if array.dtype != tensor.dtype:
            raise TypeError(
                f"input '{name}' of model '{self.name}' is {tensor.dtype.name}, not"
                f" {array.dtype.name}: write {name}.astype('{tensor.dtype.name}')"
            )
        if tensor.is_scalar:
            array = array.reshape((-1, 1) if self._is_batched else (-1,))
        return array

    def _signature(self) -> str:
        inputs = ", ".join(f"{name}: {each.datatype}" for name, each in self._inputs.items())
        return f"{self.name}({inputs})"


def _tensor(entry: Any, text: frozenset[str], scalar: frozenset[str]) -> _Tensor:
    datatype = NAME_OF_CONFIG_NUMBER.get(entry.data_type, "BYTES")
    return _Tensor(
        datatype,
        DTYPES.get(datatype, _BF16),
        entry.name in scalar,
        entry.name in text,
        getattr(entry, "optional", False),
    )


def _decoded(datatype: str, shape: list[int], raw: bytes, *, is_text: bool) -> Any:
    if datatype != "BYTES":
        return np.frombuffer(bytearray(raw), DTYPES.get(datatype, _BF16)).reshape(shape)
    elements = split_bytes(raw)
    array = np.empty(len(elements), object)
    array[:] = [element.decode() for element in elements] if is_text else elements
    return array.reshape(shape)


class ClientModel:
    """A model that is called as its function: `client["name"](array)`."""

    def __init__(self, client: Client, codec: _Codec) -> None:
        self._client, self._codec = client, codec

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the only output as an array, several by name; of a stream an iterator of these.

        Raise TypeError for wrong inputs, InferenceError if the request fails.
        """
        request = self._codec.request(args, kwargs)
        return self._stream(request) if self._codec.streams else self._infer(request)

    def _infer(self, request: Any) -> Any:
        try:
            return self._codec.result(self._client.infer(request))
        except grpc.RpcError as error:
            raise _inference_error(error) from None

    def _stream(self, request: Any) -> Iterator[Any]:
        call = self._client.stream(request)
        try:
            for response in call:
                yield from _parts(self._codec, response)
        except grpc.RpcError as error:
            raise _inference_error(error) from None
        finally:
            call.cancel()


class Client:
    """Client of a server's gRPC port: `Client("localhost:8001")["name"](array)`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, _OPTIONS)
        self.infer = _unary(self._channel, "ModelInfer")
        self._config = _unary(self._channel, "ModelConfig")
        self._stream = _streaming(self._channel)
        self._models: dict[str, ClientModel] = {}

    def __getitem__(self, name: str) -> ClientModel:
        """Return a model; raise InferenceError if the server has none of this name."""
        if name not in self._models:
            try:
                response = self._config(kserve_pb2.ModelConfigRequest(name=name))
            except grpc.RpcError as error:
                raise _inference_error(error) from None
            self._models[name] = ClientModel(self, _Codec(name, response.config))
        return self._models[name]

    def stream(self, request: Any) -> Any:
        """Return the call of one streamed request."""
        return self._stream(iter([request]))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


class AsyncClientModel:
    """A model for coroutines: `await client["name"](array)`, or `async for` of its stream."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client, self._name = client, name

    def __call__(self, *args: Any, **kwargs: Any) -> _AsyncCall:
        """Return what is awaited for the result, or iterated for a stream's results."""
        return _AsyncCall(self._client, self._name, args, kwargs)


class _AsyncCall:
    def __init__(
        self, client: AsyncClient, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._client, self._name, self._args, self._kwargs = client, name, args, kwargs

    def __await__(self) -> Generator[Any, None, Any]:
        return self._infer().__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        codec = await self._client.codec(self._name)
        call = _streaming(self._client.channel)(iter([codec.request(self._args, self._kwargs)]))
        try:
            async for response in call:
                for part in _parts(codec, response):
                    yield part
        except grpc.RpcError as error:
            raise _inference_error(error) from None
        finally:
            call.cancel()

    async def _infer(self) -> Any:
        codec = await self._client.codec(self._name)
        if codec.streams:
            raise TypeError(f"model '{self._name}' streams: write `async for` instead of `await`")
        request = codec.request(self._args, self._kwargs)
        try:
            return codec.result(await _unary(self._client.channel, "ModelInfer")(request))
        except grpc.RpcError as error:
            raise _inference_error(error) from None


class AsyncClient:
    """Client for coroutines. Each event loop that uses it has a connection of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._codecs: dict[str, _Codec] = {}

    def __getitem__(self, name: str) -> AsyncClientModel:
        """Return a model, which is looked up by its first call."""
        return AsyncClientModel(self, name)

    @property
    def channel(self) -> Any:
        """Channel of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._channel = grpc.aio.insecure_channel(self._address, _OPTIONS)
        return self._channel

    async def codec(self, name: str) -> _Codec:
        """Return the codec of a model; raise InferenceError if the server has none of this name."""
        if name not in self._codecs:
            request = kserve_pb2.ModelConfigRequest(name=name)
            try:
                response = await _unary(self.channel, "ModelConfig")(request)
            except grpc.RpcError as error:
                raise _inference_error(error) from None
            self._codecs[name] = _Codec(name, response.config)
        return self._codecs[name]

    async def close(self) -> None:
        """Close the connection of the running event loop."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = self._loop = None


def _unary(channel: Any, method: str) -> Any:
    return channel.unary_unary(
        f"{_SERVICE}/{method}",
        request_serializer=_serialized,
        response_deserializer=getattr(kserve_pb2, f"{method}Response").FromString,
    )


def _streaming(channel: Any) -> Any:
    return channel.stream_stream(
        f"{_SERVICE}/ModelStreamInfer",
        request_serializer=_serialized,
        response_deserializer=kserve_pb2.ModelStreamInferResponse.FromString,
    )


def _serialized(message: Any) -> bytes:
    serialized: bytes = message.SerializeToString()
    return serialized


def _parts(codec: _Codec, response: Any) -> Iterator[Any]:
    """Yield a response of a stream, if it has tensors; raise InferenceError if it is an error."""
    if response.error_message:
        raise InferenceError(response.error_message)
    if response.infer_response.outputs:
        yield codec.result(response.infer_response)


def _inference_error(error: Any) -> InferenceError:
    return InferenceError(error.details(), error.code().name)
