"""The plan of a run's inputs, made from flags, a mix file and a trace.

A plan is frozen and picklable. The command makes the plan, and each worker process makes its own
requests from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from nereid_perf.inputs.signature import ModelSignature

Parameter = str | int | float | bool


@dataclass(frozen=True, slots=True)
class ShapeOption:
    """Value of --shape for one input, without the batch dimension.

    datatype: "" means the datatype in the metadata.
    """

    name: str
    dims: tuple[int, ...]
    datatype: str = ""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model of the run, and the contents of its requests.

    input_data: "random", "zero", or JSON files and directories. outputs: names of the requested
    outputs; empty means all outputs. sequence_length: number of requests in a sequence; `None`
    means the length of the stream in the data, or 20 without data. sequence_length_variation: the
    largest share of sequence_length by which a sequence may be shorter or longer.
    """

    name: str
    version: str = ""
    weight: Fraction = Fraction(1)
    batch_size: int = 1
    input_data: tuple[str, ...] = ("random",)
    shapes: tuple[ShapeOption, ...] = ()
    string_length: int = 128
    string_data: str | None = None
    outputs: tuple[str, ...] = ()
    parameters: tuple[tuple[str, Parameter], ...] = ()
    priority: int = 0
    timeout_us: int = 0
    sequence_length: int | None = None
    sequence_length_variation: float = 0.2
    signature: ModelSignature | None = None


@dataclass(frozen=True, slots=True)
class InputPlan:
    """Everything that the requests of a run are made from.

    request_ids: each request has a unique id. sequences: number of sequences that are open at a
    time, over all workers; `None` means as many as there are requests in flight. sequence_ids:
    first and last sequence id. text_ids: sequence ids are texts; `None` means that the datatype of
    the model's control input decides. distinct_inputs: number of different random requests, which
    are sent in turn. region_prefix: beginning of the names of shared-memory regions; "" means that
    tensors are in the requests themselves. output_region_bytes: bytes in the region for an output
    of variable size, per element of a batch.
    """

    protocol: Literal["http", "grpc"]
    models: tuple[ModelPlan, ...] = ()
    seed: int = 0
    random_integers: tuple[int, int] = (0, 127)
    distinct_inputs: int = 1
    has_json_inputs: bool = False
    has_json_outputs: bool = False
    request_ids: bool = False
    sequences: int | None = None
    sequence_ids: tuple[int, int] = (1, (1 << 32) - 1)
    text_ids: bool | None = None
    traces: tuple[str, ...] = ()
    region_prefix: str = ""
    output_region_bytes: int = 102_400
