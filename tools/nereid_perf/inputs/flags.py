"""Flags for the contents of requests, named as in perf_analyzer, and their conversion to a plan."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from nereid.config.flags import Topic, boolean, choice, flag, integer
from nereid.core.tensors.datatypes import NAMES
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.plan import InputPlan, ModelPlan, ShapeOption
from nereid_perf.inputs.resolution import new_region_prefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_perf.inputs.plan import Parameter

_PARAMETER_TYPES: Final[dict[str, Callable[[str], Parameter]]] = {
    "string": str,
    "int": int,
    "uint": int,
    "float": float,
    "double": float,
    "bool": boolean,
}
_MAX_INT: Final = (1 << 63) - 1
_MAX_MIX_BYTES: Final = 1 << 20
# Parameters that have flags of their own, as in Triton's clients.
_RESERVED: Final = {
    "sequence_id": "--start-sequence-id",
    "sequence_start": "--sequence-length",
    "sequence_end": "--sequence-length",
    "priority": "--request-priority",
    "timeout": "--request-timeout-us",
    "binary_data_output": "--output-tensor-format",
}


@dataclass(frozen=True, slots=True)
class WeightedModel:
    """Value of one --model."""

    name: str
    weight: Fraction = Fraction(1)


def weighted_model(text: str) -> WeightedModel:
    """Parse NAME or NAME=WEIGHT."""
    name, separator, weight = text.rpartition("=")
    if not separator:
        name, weight = text, "1"
    if not name:
        raise ValueError("expected NAME or NAME=WEIGHT")
    return WeightedModel(name, _weight(weight))


def shape_option(text: str) -> ShapeOption:
    """Parse NAME:1,2 or NAME:DATATYPE:1,2; names may have colons."""
    name, separator, sizes = text.rpartition(":")
    dims = sizes.split(",") if sizes else []
    if not separator or not name or not all(re.fullmatch("[0-9]{1,12}", dim) for dim in dims):
        raise ValueError("expected NAME:SIZE,SIZE,... without the batch dimension, as in X:3,224")
    rest, separator, datatype = name.rpartition(":")
    if separator and rest and datatype in NAMES:
        return ShapeOption(rest, tuple(map(int, dims)), datatype)
    return ShapeOption(name, tuple(map(int, dims)))


def request_parameter(text: str) -> tuple[str, Parameter]:
    """Parse NAME:VALUE:TYPE; values may have colons."""
    name, separator, rest = text.partition(":")
    value, end, kind = rest.rpartition(":")
    parse = _PARAMETER_TYPES.get(kind.lower())
    if not (name and separator and end) or parse is None:
        raise ValueError(f"expected NAME:VALUE:TYPE, with a type of {', '.join(_PARAMETER_TYPES)}")
    if name in _RESERVED:
        raise ValueError(f"{name} is not for --request-parameter: use {_RESERVED[name]}")
    try:
        parsed = parse(value)
    except ValueError:
        raise ValueError(f"'{value}' is no {kind}") from None
    if isinstance(parsed, int) and not -_MAX_INT <= parsed <= _MAX_INT:
        raise ValueError(f"expected a number of at most {_MAX_INT}")
    return name, parsed


def number_range(text: str) -> tuple[int, int]:
    """Parse LOW:HIGH."""
    match = re.fullmatch("(-?[0-9]{1,19}):(-?[0-9]{1,19})", text)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError("expected LOW:HIGH, two whole numbers")
    return int(match[1]), int(match[2])


def id_range(text: str) -> tuple[int, int]:
    """Parse START or START:END (END: one past the last id); return the first and the last id."""
    match = re.fullmatch("([0-9]{1,19})(?::([0-9]{1,19}))?", text)
    first = int(match[1]) if match else 0
    end = int(match[2]) if match and match[2] else 1 << 32
    if not 0 < first < end <= _MAX_INT:
        raise ValueError("expected START or START:END, whole numbers from 1")
    return first, end - 1


def percentage(text: str) -> float:
    """Parse a number from 0 to 100."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise ValueError("expected a percentage from 0 to 100")
    return value


def _weight(text: str) -> Fraction:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", text) or not Fraction(text):
        raise ValueError("expected a weight as in NAME=2.5")
    return Fraction(text)


@dataclass(frozen=True)
class InputFlags:
    """Contents of the requests that nereid perf sends."""

    TOPIC: ClassVar = Topic.INPUTS

    model: tuple[WeightedModel, ...] = flag(
        (),
        "NAME of the model; several with NAME=WEIGHT each are a mix",
        weighted_model,
        aliases=("-m", "--model-name"),
        repeated=True,
    )
    model_version: str = flag("", "its version; else the server chooses", aliases=("-x",))
    mix: str = flag(
        "",
        'a JSON file of several models: {"models": [{"model": "a", "weight": 3, "shape": '
        '["X:1,16"]}]}, each with flags of this section',
    )
    batch_size: int = flag(1, "of each request", integer(1, 1 << 20), aliases=("-b",))
    input_data: tuple[str, ...] = flag(
        ("random",),
        "random, zero, or JSON files and directories of perf_analyzer's form",
        deprecated={"--data-directory": ""},
        repeated=True,
    )
    shape: tuple[ShapeOption, ...] = flag(
        (),
        "sizes of an input with variable ones, NAME:1,16 without the batch dimension; "
        "NAME:DATATYPE:1,16 for servers that do not name their inputs",
        shape_option,
        repeated=True,
    )
    string_length: int = flag(128, "of random BYTES elements", integer(0, 1 << 30))
    string_data: str | None = flag(None, "each BYTES element, instead of random ones")
    random_integers: tuple[int, int] = flag(
        (0, 127), "the least and the largest random integer, LOW:HIGH", number_range
    )
    distinct_inputs: int = flag(
        1, "how many random requests are made and sent in turn", integer(1, 1_000_000)
    )
    random_seed: int = flag(0, "of inputs, lengths of sequences and mixes", integer(0, _MAX_INT))
    input_tensor_format: str = flag("binary", "binary or json, over HTTP", choice("binary", "json"))
    output_tensor_format: str = flag(
        "binary", "binary or json, over HTTP", choice("binary", "json")
    )
    requested_output: tuple[str, ...] = flag(
        (), "an output to request; else the server sends all", repeated=True
    )
    request_parameter: tuple[tuple[str, Parameter], ...] = flag(
        (), "of each request, NAME:VALUE:TYPE", request_parameter, repeated=True
    )
    request_priority: int = flag(0, "of each request; 0: the model's default", integer(0))
    request_timeout_us: int = flag(0, "in the model's queue; 0: none", integer(0))
    request_ids: bool = flag(False, "give each request an id", boolean, bare="true")
    num_of_sequences: int | None = flag(
        None, "open at a time; else as many as requests are in flight", integer(1, 1 << 20)
    )
    sequence_length: int | None = flag(
        None,
        "requests of a sequence; else 20, or as many as a stream of --input-data has",
        integer(1, 1 << 31),
    )
    sequence_length_variation: float = flag(
        20.0, "by how many per cent --sequence-length varies", percentage
    )
    start_sequence_id: int = flag(1, "the first sequence's id", integer(1, _MAX_INT - 1))
    sequence_id_range: tuple[int, int] | None = flag(
        None, "START:END, ids from START to before END", id_range
    )
    sequence_id_type: str = flag(
        "auto",
        "int or string; auto: as the model's configuration says",
        choice("auto", "int", "string"),
    )
    shared_memory: str = flag("none", "none or system: where tensors are", choice("none", "system"))
    output_shared_memory_size: int = flag(
        102_400, "bytes of an output whose size varies, times the batch size", integer(1, 1 << 40)
    )
    replay: tuple[str, ...] = flag(
        (),
        "a trace to replay: JSON Lines of Nereid's, or a trace file of Triton's or Nereid's",
        repeated=True,
    )

    def input_plan(
        self, protocol: Literal["http", "grpc"], *, request_ids: bool = False
    ) -> InputPlan:
        """Return the plan for resolve_plan() to complete. May raise InputError.

        request_ids: the client needs an id in each request.
        """
        first, last = self.sequence_id_range or (self.start_sequence_id, (1 << 32) - 1)
        if self.sequence_id_range is None and first > last:
            last = _MAX_INT
        if self.num_of_sequences is not None and self.num_of_sequences > last - first + 1:
            raise InputError(
                f"--sequence-id-range: expected at least {self.num_of_sequences} ids, as "
                "--num-of-sequences says"
            )
        return InputPlan(
            protocol,
            self._models(),
            self.random_seed,
            self.random_integers,
            self.distinct_inputs,
            self.input_tensor_format == "json",
            self.output_tensor_format == "json",
            self.request_ids or request_ids,
            self.num_of_sequences,
            (first, last),
            None if self.sequence_id_type == "auto" else self.sequence_id_type == "string",
            self.replay,
            new_region_prefix() if self.shared_memory == "system" else "",
            self.output_shared_memory_size,
        )

    def _models(self) -> tuple[ModelPlan, ...]:
        if self.mix:
            if self.model:
                raise InputError("--mix names the models: leave -m out")
            return _read_mix(self.mix, self)
        return tuple(self._model(model) for model in self.model)

    def _model(self, model: WeightedModel) -> ModelPlan:
        return ModelPlan(
            model.name,
            self.model_version,
            model.weight,
            self.batch_size,
            self.input_data,
            self.shape,
            self.string_length,
            self.string_data,
            self.requested_output,
            self.request_parameter,
            self.request_priority,
            self.request_timeout_us,
            self.sequence_length,
            self.sequence_length_variation / 100,
        )


_MODEL_FLAGS: Final = (
    "model_version",
    "batch_size",
    "input_data",
    "shape",
    "string_length",
    "string_data",
    "requested_output",
    "request_parameter",
    "request_priority",
    "request_timeout_us",
    "sequence_length",
    "sequence_length_variation",
)


def _read_mix(path: str, common: InputFlags) -> tuple[ModelPlan, ...]:
    try:
        with Path(path).open("rb") as file:
            document = json.loads(file.read(_MAX_MIX_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected JSON: {error}") from None
    models = document.get("models") if isinstance(document, dict) else None
    if not isinstance(models, list) or not models:
        raise InputError(f'{path}: expected {{"models": [{{"model": "NAME", "weight": 1}}]}}')
    return tuple(
        _mixed(f"{path}: models[{index}]", model, common) for index, model in enumerate(models)
    )


def _mixed(place: str, members: Any, common: InputFlags) -> ModelPlan:
    if not isinstance(members, dict) or not isinstance(members.get("model"), str):
        raise InputError(f"{place}: expected an object with a model's name as model")
    given = {name.replace("-", "_"): value for name, value in members.items()}
    unknown = given.keys() - {*_MODEL_FLAGS, "model", "weight"}
    if unknown:
        raise InputError(
            f"{place}: unknown member '{min(unknown)}': expected {', '.join(_MODEL_FLAGS)}"
        )
    options = {field.name: field.metadata["flag"] for field in fields(InputFlags)}
    name, weight = given.pop("model"), given.pop("weight", 1)
    changes: dict[str, Any] = {}
    try:
        model = WeightedModel(name, _weight(str(weight)))
    except ValueError:
        raise InputError(f"{place}: weight: expected a positive number") from None
    for member, value in given.items():
        option = options[member]
        texts = value if isinstance(value, list) else [value]
        if any(not isinstance(text, str | int | float) for text in texts) or (
            not option.repeated and len(texts) != 1
        ):
            raise InputError(f"{place}: {member}: expected a value as of --{member}")
        try:
            parsed = [option.parse(str(text)) for text in texts]
        except ValueError as error:
            raise InputError(f"{place}: {member}: {error}") from None
        changes[member] = tuple(parsed) if option.repeated else parsed[0]
    return replace(common, **changes)._model(model)  # noqa: SLF001 - of its own class
