"""`@nereid.model`: a function or class with what a model's configuration needs."""

from __future__ import annotations

import inspect
import re
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Final, overload

from nereid.app.signature import Signature, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_DEFAULT_BATCH_SIZE: Final = 32


class Model:
    """A function or class that a mesh serves. Called directly, it is the function."""

    def __init__(  # noqa: PLR0913 - all but the first by keyword
        self,
        target: Callable[..., Any],
        *,
        name: str,
        signature: Signature,
        max_batch_size: int = 0,
        instances: int = 1,
        max_delay_us: int = 0,
        cache: bool = False,
        config: Mapping[str, Any] | None = None,
        streams: bool | None = None,
        takes_requests: bool = False,
    ) -> None:
        """streams: whether a request may have several responses; None: as the function is made.

        takes_requests: the function gets a list of requests, as PyTriton's do.
        """
        if not _NAME.fullmatch(name):
            raise TypeError(f"name={name!r}: a model's name has letters, digits, '_', '-' and '.'")
        self.target, self.name, self.signature = target, name, signature
        self.max_batch_size, self.instances = max_batch_size, instances
        self.max_delay_us, self.cache, self.config = max_delay_us, cache, dict(config or {})
        self.takes_requests = takes_requests
        self.streams = is_stream(_function(target)) if streams is None else streams
        if not inspect.isclass(target):
            update_wrapper(self, target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or construct the class."""
        return self.target(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<model '{self.name}': {self.target!r}>"


@overload
def model(target: Callable[..., Any], /) -> Model: ...


@overload
def model(
    *,
    name: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    batch: bool = False,
    max_batch_size: int | None = None,
    max_delay_us: int = 0,
    instances: int = 1,
    cache: bool = False,
    config: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Model]: ...


def model(  # noqa: PLR0913 - all but the first by keyword
    target: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    batch: bool = False,
    max_batch_size: int | None = None,
    max_delay_us: int = 0,
    instances: int = 1,
    cache: bool = False,
    config: Mapping[str, Any] | None = None,
) -> Any:
    """Make a model of a function or class, as a decorator with or without settings.

    A class is constructed when the model is loaded, called for requests, and closed by `close()`.
    batch: the function gets the arrays of several requests at once, joined along a batch dimension;
    config: further fields of config.pbtxt. Raise TypeError if a type is missing or wrong.
    """
    if target is None:
        return partial(
            model,
            name=name,
            inputs=inputs,
            outputs=outputs,
            batch=batch,
            max_batch_size=max_batch_size,
            max_delay_us=max_delay_us,
            instances=instances,
            cache=cache,
            config=config,
        )
    function, where = _function(target), target.__qualname__
    signature = signature_of(function, inputs, outputs, is_method=inspect.isclass(target))
    if not batch and (max_batch_size is not None or max_delay_us):
        raise TypeError(f"{where}: max_batch_size= and max_delay_us= need batch=True")
    if batch and is_stream(function):
        raise TypeError(f"{where}: a generator streams to one request at a time: leave batch= out")
    if batch and any(tensor.is_optional for tensor in signature.inputs.values()):
        raise TypeError(f"{where}: with batch=True every request has all inputs: drop the defaults")
    for option, value in (("max_batch_size", max_batch_size), ("instances", instances)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise TypeError(f"{where}: {option}={value!r} has to be a number of at least 1")
    return Model(
        target,
        name=target.__name__ if name is None else name,
        signature=signature,
        max_batch_size=(max_batch_size or _DEFAULT_BATCH_SIZE) if batch else 0,
        instances=instances,
        max_delay_us=max_delay_us,
        cache=cache,
        config=config,
    )


def _function(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return what is called for requests; raise TypeError if nothing is."""
    if not inspect.isclass(target):
        if not inspect.isroutine(target):
            raise TypeError(f"{target!r} is no function and no class")
        return target
    method = target.__dict__.get("__call__") or getattr(target, "__call__", None)  # noqa: B004
    if not inspect.isfunction(method):
        raise TypeError(f"{target.__qualname__}: write __call__(self, ...), which serves requests")
    return method


def is_stream(function: Callable[..., Any]) -> bool:
    """Return whether a function is a generator, sync or async."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
