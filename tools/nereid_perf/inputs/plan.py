"""The plan of a run's inputs, frozen and picklable; each worker process makes requests from it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from nereid_perf.inputs.signature import ModelSignature

Parameter = str | int | float | bool


@dataclass(frozen=True, slots=True)
class ShapeOption:
    """A value of --shape, without the batch dimension; datatype "" is the metadata's."""

    name: str
    dims: tuple[int, ...]
    datatype: str = ""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model of the run; input_data is "random", "zero", or JSON files and directories.

    outputs: empty means all. sequence_length: requests in a sequence; `None` means the data
    stream's length, or 20. sequence_length_variation: largest relative deviation from it.
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

    sequences: open at a time, over all workers; `None` means as many as requests in flight.
    sequence_ids: first and last id. text_ids: `None` means that the model's control input decides.
    distinct_inputs: number of different random requests. region_prefix: "" means no shared memory.
    output_region_bytes: of a variable output, per element of a batch. path: of calls to OpenAI's
    API; "" means inference requests. streams: whether these calls ask for streams.
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
    path: str = ""
    streams: bool = False
