"""The class TritonPythonModel of a written `model.py`: calls a function with arrays.

This runs in workers of the Python backend, and uses nothing but its API.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from nereid.app.loading import load_file, named_object
from nereid.app.model import Model
from nereid.app.request import Request
from nereid.app.tensor import Tensor
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

_FINAL: Final = 1
# Calls of a coroutine function that run at once; further requests wait in the mesh.
_MAX_CALLS: Final = 256
# Bytes that are no UTF-8 become surrogates, as in file names: an error would fail the other
# requests of the batch.
_UNDECODABLE: Final = "surrogateescape"


class OutputError(Exception):
    """A function returned other outputs than its model declares."""


class Outputs:
    """Turns what a function returns into arrays of the declared outputs."""

    def __init__(self, model: str, tensors: Mapping[str, Tensor], *, in_list: bool = False) -> None:
        """in_list: a single output is returned in a list, too."""
        self._model, self._tensors, self._in_list = model, tensors, in_list

    def arrays(self, returned: Any, *rows: int) -> dict[str, np.ndarray[Any, Any]]:
        """Return an array for each output; rows: size of the batch dimension. Raise OutputError."""
        values = self._by_name(returned)
        if unknown := [name for name in values if name not in self._tensors]:
            raise OutputError(
                f"model '{self._model}': the function returned '{unknown[0]}', which is no output:"
                f" they are {', '.join(self._tensors)}"
            )
        if missing := [name for name in self._tensors if name not in values]:
            raise OutputError(
                f"model '{self._model}': the function did not return output '{missing[0]}'"
            )
        return {
            name: self._array(name, value, self._tensors[name], rows)
            for name, value in values.items()
        }

    def _by_name(self, returned: Any) -> Mapping[str, Any]:
        if isinstance(returned, Mapping):
            return returned
        if is_dataclass(returned):
            return {field.name: getattr(returned, field.name) for field in fields(returned)}
        if hasattr(returned, "_asdict"):
            named: dict[str, Any] = returned._asdict()
            return named
        if len(self._tensors) == 1 and not self._in_list:
            return dict.fromkeys(self._tensors, returned)
        if not isinstance(returned, Sequence) or len(returned) != len(self._tensors):
            raise OutputError(
                f"model '{self._model}': the function has to return"
                f" {', '.join(self._tensors)}, it returned {type(returned).__name__}"
            )
        return dict(zip(self._tensors, returned, strict=True))

    def _array(
        self, name: str, value: Any, tensor: Tensor, rows: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        try:
            array = _encoded(value) if tensor.dtype == object else _numeric(value, tensor.dtype)
        except (TypeError, ValueError) as error:
            actual = f"{type(value).__name__} ({error})"
            raise self._mismatch(name, tensor, rows, actual) from None
        expected = (*rows, *tensor.dims)
        if tensor.is_scalar and array.shape == rows:
            array = array.reshape(expected)
        fits = len(expected) == array.ndim and all(
            want in (-1, have) for want, have in zip(expected, array.shape, strict=True)
        )
        if array.dtype != tensor.dtype or not fits:
            kind = array.dtype.name.replace("object", "bytes")
            raise self._mismatch(name, tensor, rows, f"{kind} {list(array.shape)}")
        return array

    def _mismatch(
        self, name: str, tensor: Tensor, rows: tuple[int, ...], actual: str
    ) -> OutputError:
        return OutputError(
            f"model '{self._model}': output '{name}' is declared as {tensor.describe(*rows)},"
            f" the function returned {actual}"
        )


def _numeric(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    # Python's own values have no datatype; whoever has one has to have the declared one.
    is_plain = isinstance(value, bool | int | float | list | tuple)
    return np.asarray(value, dtype if is_plain else None)


def _encoded(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value, object)
    flat = [
        each.encode(errors=_UNDECODABLE) if isinstance(each, str) else each for each in array.flat
    ]
    if wrong := next((each for each in flat if not isinstance(each, bytes)), None):
        raise TypeError(f"an element is {type(wrong).__name__}")
    encoded = np.empty(array.shape, object)
    encoded.flat[:] = flat
    return encoded


def input_value(array: np.ndarray[Any, Any], tensor: Tensor) -> Any:
    """Return what a function gets for an input: an array, or a Python value for a scalar."""
    if tensor.is_text:
        decoded = np.empty(array.shape, object)
        decoded.flat[:] = [each.decode(errors=_UNDECODABLE) for each in array.flat]
        array = decoded
    if not tensor.is_scalar:
        return array
    return array[:, 0] if array.ndim > 1 else array.item()


class _Call(NamedTuple):
    """One call of the function, with the requests that it serves."""

    requests: list[Any]
    arguments: dict[str, Any]
    # Batch sizes of the requests; empty without a batch dimension.
    rows: list[int]


class AppModel:
    """Model as the Python backend calls it."""

    def __init__(self, target: Any, api: Any) -> None:
        """target: a model, or the bare function of one that takes requests."""
        self._target, self._api = target, api

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the configuration; construct the model if it is a class."""
        config = json.loads(args["model_config"])
        self._name: str = config["name"]
        self._is_batched = config.get("max_batch_size", 0) > 0
        is_model = isinstance(self._target, Model)
        self._inputs = (
            self._target.signature.inputs if is_model else _tensors(config.get("input", ()))
        )
        outputs = self._target.signature.outputs if is_model else _tensors(config["output"])
        self._outputs = Outputs(self._name, outputs, in_list=not is_model)
        self._streams = config.get("model_transaction_policy", {}).get("decoupled", False)
        self._takes_requests = not is_model
        target = self._target.target if is_model else self._target
        self._instance: Any = target() if inspect.isclass(target) else target
        function = type(self._instance).__call__ if inspect.isclass(target) else target
        self._is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(
            function
        )
        if self._is_async:
            self._loop = asyncio.new_event_loop()
            self._calls = threading.BoundedSemaphore(_MAX_CALLS)
            threading.Thread(target=self._loop.run_forever, name="model", daemon=True).start()

    def finalize(self) -> None:
        """Close the model, if it has such a method."""
        close = getattr(self._instance, "close", None)
        if callable(close):
            result = close()
            if inspect.isawaitable(result):
                if self._is_async:
                    asyncio.run_coroutine_threadsafe(_awaited(result), self._loop).result()
                else:
                    asyncio.run(_awaited(result))

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Call the function for requests; coroutines and generators respond by senders."""
        if self._takes_requests:
            return self._execute_requests(requests)
        calls = list(self._grouped(requests))
        if self._is_async:
            run = self._stream_async if self._streams else self._respond_async
            for call in calls:
                senders = [request.get_response_sender() for request in call.requests]
                self._calls.acquire()
                future = asyncio.run_coroutine_threadsafe(run(call, senders), self._loop)
                future.add_done_callback(lambda _: self._calls.release())
            return None
        if self._streams:
            for call in calls:
                self._stream(call.requests[0].get_response_sender(), call.arguments)
            return None
        responses = {}
        for call in calls:
            group = self._called(call, is_whole_batch=len(calls) == 1)
            for request, response in zip(call.requests, group, strict=True):
                responses[id(request)] = response
        return [responses[id(request)] for request in requests]

    def _called(self, call: _Call, *, is_whole_batch: bool) -> list[Any]:
        try:
            returned = self._instance(**call.arguments)
        except Exception as error:
            if is_whole_batch:
                # The backend reports it with its traceback.
                raise
            traceback.print_exc()
            return [self._failure(_reported(error)) for _ in call.requests]
        return self._responses(call, returned)

    def _grouped(self, requests: list[Any]) -> Iterator[_Call]:
        """Yield a call for each group of requests whose arrays can be joined."""
        groups: dict[Any, list[tuple[Any, dict[str, np.ndarray[Any, Any]]]]] = {}
        for number, request in enumerate(requests):
            arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            key = (
                tuple((name, array.shape[1:]) for name, array in sorted(arrays.items()))
                if self._is_batched
                else number
            )
            groups.setdefault(key, []).append((request, arrays))
        for members in groups.values():
            first = members[0][1]
            rows = [len(next(iter(arrays.values()))) for _, arrays in members]
            joined = {
                name: array
                if len(members) == 1
                else np.concatenate([arrays[name] for _, arrays in members])
                for name, array in first.items()
            }
            yield _Call(
                [request for request, _ in members],
                {name: input_value(array, self._inputs[name]) for name, array in joined.items()},
                rows if self._is_batched else [],
            )

    def _responses(self, call: _Call, returned: Any) -> list[Any]:
        try:
            if not call.rows:
                return [self._response(self._outputs.arrays(returned))]
            arrays = self._outputs.arrays(returned, sum(call.rows))
        except OutputError as error:
            return [self._failure(str(error)) for _ in call.requests]
        stops = np.cumsum(call.rows)
        return [
            self._response({name: array[stop - size : stop] for name, array in arrays.items()})
            for stop, size in zip(stops, call.rows, strict=True)
        ]

    async def _respond_async(self, call: _Call, senders: list[Any]) -> None:
        try:
            responses = self._responses(call, await self._instance(**call.arguments))
        except Exception as error:
            responses = [self._failure(_reported(error)) for _ in senders]
        for sender, response in zip(senders, responses, strict=True):
            sender.send(response, _FINAL)

    def _stream(self, sender: Any, arguments: dict[str, Any]) -> None:
        generator = self._instance(**arguments)
        try:
            for value in generator:
                if sender.is_cancelled():
                    break
                sender.send(self._response(self._outputs.arrays(value)))
        except Exception as error:
            sender.send(self._failure(_reported(error)), _FINAL)
        else:
            sender.send(flags=_FINAL)
        finally:
            generator.close()

    async def _stream_async(self, call: _Call, senders: list[Any]) -> None:
        (sender,) = senders
        generator = self._instance(**call.arguments)
        try:
            async for value in generator:
                if sender.is_cancelled():
                    break
                response = self._response(self._outputs.arrays(value))
                # The sender waits while the client cannot keep up.
                await asyncio.to_thread(sender.send, response)
        except Exception as error:
            sender.send(self._failure(_reported(error)), _FINAL)
        else:
            sender.send(flags=_FINAL)
        finally:
            await generator.aclose()

    def _execute_requests(self, requests: list[Any]) -> list[Any] | None:
        given = [
            Request(
                {
                    tensor.name(): input_value(tensor.as_numpy(), self._inputs[tensor.name()])
                    for tensor in request.inputs()
                },
                json.loads(request.parameters() or "{}"),
            )
            for request in requests
        ]
        rows = [(len(next(iter(each.values()))),) if self._is_batched else () for each in given]
        if self._streams:
            senders = [request.get_response_sender() for request in requests]
            for values in self._instance(given):
                for sender, value, size in zip(senders, values, rows, strict=True):
                    sender.send(self._checked(value, size))
            for sender in senders:
                sender.send(flags=_FINAL)
            return None
        return [
            self._checked(value, size)
            for value, size in zip(self._instance(given), rows, strict=True)
        ]

    def _checked(self, value: Any, rows: tuple[int, ...]) -> Any:
        try:
            return self._response(self._outputs.arrays(value, *rows))
        except OutputError as error:
            return self._failure(str(error))

    def _response(self, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
        return self._api.InferenceResponse(
            [self._api.Tensor(name, array) for name, array in arrays.items()]
        )

    def _failure(self, text: str) -> Any:
        return self._api.InferenceResponse(error=self._api.TritonError(text))


def load(model_file: str, source: str, name: str = "") -> type:
    """Return the class TritonPythonModel for what a file, or a pickle, defines."""
    import triton_python_backend_utils as api  # noqa: PLC0415 - only workers have it

    path = Path(model_file).parent / source
    target = (
        named_object(load_file(path.resolve()), name)
        if name
        # The mesh's own start has written it: it is what the user's process has defined.
        else pickle.loads(path.read_bytes())  # noqa: S301
    )
    if isinstance(target, Model) and target.takes_requests:
        target = target.target

    class TritonPythonModel(AppModel):
        """Model of this file."""

        def __init__(self) -> None:
            super().__init__(target, api)

    return TritonPythonModel


def _tensors(entries: Any) -> dict[str, Tensor]:
    found = {}
    for entry in entries:
        datatype = entry["data_type"]
        name = (
            NAME_OF_CONFIG_NUMBER[datatype]
            if isinstance(datatype, int)
            else datatype.removeprefix("TYPE_").replace("STRING", "BYTES")
        )
        found[entry["name"]] = Tensor(name, *(int(dim) for dim in entry["dims"]))
    return found


def _reported(error: Exception) -> str:
    if isinstance(error, OutputError):
        return str(error)
    return f"{type(error).__name__}: {error}"


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
