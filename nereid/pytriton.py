"""PyTriton's calls: `Triton`, `bind`, `@batch`, `ModelConfig`, `Tensor`, served by a mesh.

A file that uses PyTriton changes its imports to `from nereid.pytriton import ...`. Functions run in
workers, one for each instance, which import the file up to its `run()` or `serve()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nereid.app import tensor as tensors
from nereid.app.loading import end_loading
from nereid.app.mesh import Mesh, MeshError, Ports, print_line
from nereid.app.model import Model
from nereid.app.request import Request
from nereid.app.signature import Signature

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "DynamicBatcher",
    "ModelConfig",
    "Request",
    "Tensor",
    "Triton",
    "TritonConfig",
    "batch",
    "first_value",
    "sample",
]


@dataclass(frozen=True)
class Tensor:
    """Input or output of a bound function; without a name it is INPUT_1, OUTPUT_1 and so on."""

    shape: Sequence[int]
    dtype: Any
    name: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class DynamicBatcher:
    """Settings of the batcher: `dynamic_batching` of config.pbtxt."""

    max_queue_delay_microseconds: int = 0
    preferred_batch_size: Sequence[int] = ()
    preserve_ordering: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """Settings of a bound function."""

    batching: bool = True
    max_batch_size: int = 4
    batcher: DynamicBatcher = field(default_factory=DynamicBatcher)
    response_cache: bool = False
    decoupled: bool = False


@dataclass(frozen=True)
class TritonConfig:
    """Ports and addresses; other settings of Triton go to `Triton(flags=[...])`."""

    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    http_address: str = "127.0.0.1"


class Triton:
    """Functions that are bound, and the mesh that serves them."""

    def __init__(
        self, *, config: TritonConfig | None = None, flags: Sequence[str] = (), **_ignored: Any
    ) -> None:
        """Take settings; PyTriton's further arguments have no meaning here.

        flags: those of `nereid serve`.
        """
        self._config, self._flags = config or TritonConfig(), flags
        self._models: list[Model] = []
        self._mesh: Mesh | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    @property
    def models(self) -> Sequence[Model]:
        """Functions that are bound."""
        return self._models

    def bind(  # noqa: PLR0913 - PyTriton's arguments
        self,
        model_name: str,
        infer_func: Callable[..., Any] | Sequence[Callable[..., Any]],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        config: ModelConfig | None = None,
        *,
        model_version: int = 1,
        strict: bool = True,
        **_ignored: Any,
    ) -> None:
        """Add a function; a list of functions has as many instances, all of the first one.

        Outputs are always checked, as with PyTriton's strict=True. Raise TypeError for wrong types.
        """
        del strict
        if self._mesh is not None:
            raise MeshError("bind functions before run() or serve()")
        if model_version != 1:
            raise TypeError(f"model_version={model_version}: a bound function is version 1")
        functions = infer_func if isinstance(infer_func, Sequence) else [infer_func]
        settings = config or ModelConfig()
        batcher, extra = settings.batcher, {}
        if settings.batching and (batcher.preferred_batch_size or batcher.preserve_ordering):
            extra["dynamic_batching"] = {
                "max_queue_delay_microseconds": batcher.max_queue_delay_microseconds,
                "preferred_batch_size": list(batcher.preferred_batch_size),
                "preserve_ordering": batcher.preserve_ordering,
            }
        self._models.append(
            Model(
                functions[0],
                name=model_name,
                signature=Signature(_types(inputs, "INPUT"), _types(outputs, "OUTPUT")),
                max_batch_size=settings.max_batch_size if settings.batching else 0,
                instances=len(functions),
                max_delay_us=batcher.max_queue_delay_microseconds,
                cache=settings.response_cache,
                config=extra,
                streams=settings.decoupled,
                takes_requests=True,
            )
        )

    def run(self) -> None:
        """Start the mesh and return when the functions are served; raise MeshError."""
        end_loading()
        if self._mesh is None:
            config = self._config
            self._mesh = Mesh(
                self._models,
                host=config.http_address,
                ports=Ports(config.http_port, config.grpc_port, config.metrics_port),
                flags=self._flags,
                on_line=print_line,
            )

    def serve(self) -> None:
        """Serve until Ctrl-C; raise MeshError if the mesh does not start."""
        self.run()
        assert self._mesh is not None, "it runs"
        try:
            self._mesh.wait()
        except KeyboardInterrupt:
            pass
        finally:
            self.stop()

    def is_alive(self) -> bool:
        """Return whether the mesh runs."""
        return self._mesh is not None and self._mesh.is_running

    def stop(self) -> bool:
        """End the mesh; return whether one ran."""
        mesh, self._mesh = self._mesh, None
        if mesh is not None:
            mesh.stop()
        return mesh is not None

    def save(self, path: str | Path) -> Path:
        """Write the repository that `nereid serve` takes; call this after run()."""
        if self._mesh is None:
            raise MeshError("save() writes what run() serves")
        return self._mesh.save(path)


def batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that gets the arrays of all requests, joined along the first dimension.

    It returns the outputs in their order or by name; a generator yields them.
    """

    def arguments(requests: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[int]]:
        names = list(requests[0])
        if any(list(request) != names for request in requests):
            raise ValueError("the requests of a batch have different inputs")
        joined = {name: np.concatenate([request[name] for request in requests]) for name in names}
        return joined, np.cumsum([len(request[names[0]]) for request in requests]).tolist()

    def split(outputs: Any, stops: list[int]) -> list[Any]:
        starts = [0, *stops[:-1]]
        pairs = list(zip(starts, stops, strict=True))
        if isinstance(outputs, Mapping):
            return [
                {name: np.asarray(value)[start:stop] for name, value in outputs.items()}
                for start, stop in pairs
            ]
        return [[np.asarray(value)[start:stop] for value in outputs] for start, stop in pairs]

    @wraps(function)
    def call(requests: Sequence[Mapping[str, Any]]) -> list[Any]:
        joined, stops = arguments(requests)
        return split(function(**joined), stops)

    @wraps(function)
    def stream(requests: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
        joined, stops = arguments(requests)
        for outputs in function(**joined):
            yield split(outputs, stops)

    return stream if isgeneratorfunction(function) else call


def sample(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that gets the arrays of one request, without batching."""

    @wraps(function)
    def call(requests: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [function(**request) for request in requests]

    return call


def first_value(*names: str) -> Callable[..., Any]:
    """Decorate a function below @batch: of these inputs it gets the first element."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(**inputs: Any) -> Any:
            for name in names:
                inputs[name] = inputs[name].flat[0]
            return function(**inputs)

        return call

    return decorate


def _types(given: Sequence[Tensor], kind: str) -> dict[str, tensors.Tensor]:
    found = {}
    for number, each in enumerate(given, 1):
        name = each.name or f"{kind}_{number}"
        try:
            # PyTriton's functions get and return bytes, whatever the datatype of strings.
            is_string = np.dtype(each.dtype).kind in "USO"
            converted = tensors.Tensor(bytes if is_string else each.dtype, *each.shape)
        except TypeError as error:
            raise TypeError(f"tensor '{name}': {error}") from None
        found[name] = converted.as_optional() if each.optional else converted
    return found
