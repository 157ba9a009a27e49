"""Decoded responses and requests, as they are compared and reported.

This module must not import numpy: services that look into no tensor use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tensor:
    """Tensor without its name. raw: little-endian elements, as in KServe's binary form."""

    datatype: str
    shape: tuple[int, ...]
    raw: bytes


Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Failure:
    """Error in place of outputs. status: as its protocol writes it, for example "404"."""

    status: str
    message: str


@dataclass(frozen=True, slots=True)
class Response:
    """Outputs by name, or a failure.

    fields: what else the response says, for example its id and its parameters, as text.
    """

    outputs: Tensors = field(default_factory=dict)
    failure: Failure | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, with the responses of the server in service (old) and of the other one (new).

    Streams have any number of responses. Latencies are in seconds, `None` if unknown.
    """

    model: str
    inputs: Tensors
    old: Sequence[Response]
    new: Sequence[Response]
    old_latency_s: float | None = None
    new_latency_s: float | None = None
    request_id: str = ""
