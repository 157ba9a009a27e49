"""The encoded requests of one model, which a source hands out."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.tensors.shapes import VARIABLE, format_shape
from nereid_perf.inputs.encoding import make_encoder
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.real_data import DataReader, Step
from nereid_perf.inputs.regions import Region, input_ranges, output_ranges
from nereid_perf.inputs.signature import TensorSpec
from nereid_perf.inputs.tensors import Tensor, TensorMaker, dims_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nereid_perf.inputs.encoding import Encoder, RequestTemplate
    from nereid_perf.inputs.plan import InputPlan, ModelPlan
    from nereid_perf.inputs.real_data import Stream
    from nereid_perf.inputs.regions import RegionRange

_ZERO: Final = "zero"
_RANDOM: Final = "random"
# Maximum size of one model's requests. A worker keeps them with and without variable parts.
_MAX_ENCODED_BYTES: Final = 1 << 30


class Workload(NamedTuple):
    """Encoded requests; `streams`: for each stream, its indexes in `templates` and `expected`."""

    model: ModelPlan
    encoder: Encoder
    templates: list[RequestTemplate]
    expected: list[tuple[Tensor, ...]]
    streams: list[list[int]]
    regions: tuple[Region, ...]


def make_workload(plan: InputPlan, index: int) -> Workload:
    """Return the requests of a model, which are the same in every process. May raise InputError."""
    model = plan.models[index]
    streams = _batched(model, _streams(plan, model))
    requests = [request for stream in streams for request in stream]
    ranges: Sequence[Sequence[RegionRange]] = ((),) * len(requests)
    outputs: Mapping[str, RegionRange | None] = dict.fromkeys(model.outputs)
    regions: list[Region] = []
    if plan.region_prefix:
        ranges, region = input_ranges(plan, index, [request.inputs for request in requests])
        output_places, output_region = output_ranges(plan, index, model)
        outputs = {**output_places}
        regions = [region, output_region]
    encoder = make_encoder(plan, model, outputs)
    numbers = iter(range(len(requests)))
    return Workload(
        model,
        encoder,
        [
            encoder.template(request.inputs, places)
            for request, places in zip(requests, ranges, strict=True)
        ],
        [request.expected for request in requests],
        [[next(numbers) for _ in stream] for stream in streams],
        tuple(regions),
    )


def make_steps(plan: InputPlan, index: int) -> list[Step]:
    """Return the inputs of the model's requests, with the batch dimension. May raise InputError."""
    model = plan.models[index]
    return [step for stream in _batched(model, _streams(plan, model)) for step in stream]


def input_specs(model: ModelPlan) -> tuple[TensorSpec, ...]:
    """Return the model's inputs, or those of --shape with a datatype if the metadata has none."""
    assert model.signature is not None, "the plan is resolved"
    if model.signature.inputs:
        return model.signature.inputs
    return tuple(
        TensorSpec(shape.name, shape.datatype, (VARIABLE,) * len(shape.dims))
        for shape in model.shapes
        if shape.datatype
    )


def _streams(plan: InputPlan, model: ModelPlan) -> tuple[Stream, ...]:
    specs = input_specs(model)
    options = {shape.name: shape.dims for shape in model.shapes}
    assert model.signature is not None, "the plan is resolved"
    if model.input_data not in ((_ZERO,), (_RANDOM,)):
        for name, dims in options.items():
            for spec in specs:
                if spec.name == name:
                    dims_of(spec, dims, model.name)
        return DataReader(specs, model.signature.outputs, options).read(model.input_data)
    made = [spec for spec in specs if not spec.is_optional]
    if not made:
        raise InputError(
            f"the metadata of model '{model.name}' has no inputs: give them, as in --shape "
            "NAME:FP32:1,16, or in a file with --input-data"
        )
    for spec in made:
        if spec.is_shape:
            raise InputError(
                f"input '{spec.name}' of model '{model.name}' is a shape tensor: give its values "
                "in a file with --input-data"
            )
    is_zero = model.input_data == (_ZERO,)
    maker = TensorMaker(plan, model, zeros=is_zero)
    shapes = [dims_of(spec, options.get(spec.name), model.name) for spec in made]
    count = model.batch_size * (1 if is_zero else plan.distinct_inputs)
    steps = [Step(tuple(map(maker.make, made, shapes)))]
    # Check the size before the other steps are made.
    _check_size(model, count * _size(steps))
    steps += [Step(tuple(map(maker.make, made, shapes))) for _ in range(count - 1)]
    return (tuple(steps),)


def _size(steps: Iterable[Step]) -> int:
    return sum(len(tensor.raw) for step in steps for tensor in step.inputs)


def _check_size(model: ModelPlan, size: int) -> None:
    if size > _MAX_ENCODED_BYTES:
        raise InputError(
            f"the requests of model '{model.name}' take {size} bytes, more than "
            f"{_MAX_ENCODED_BYTES}: give fewer steps, or fewer --distinct-inputs"
        )


def _batched(model: ModelPlan, streams: Sequence[Stream]) -> list[list[Step]]:
    """Join batch_size consecutive steps of a stream to each request. Add the batch dimension."""
    signature = model.signature
    assert signature is not None, "the plan is resolved"
    if not signature.is_sequence:
        streams = (tuple(step for stream in streams for step in stream),)
    if signature.max_batch_size is None:
        return [[*stream] for stream in streams]
    size = model.batch_size
    batched = []
    for stream in streams:
        count = len(stream)
        # In a sequence, each request begins one step after the previous one. Otherwise it begins
        # after the last step of the previous one.
        distance = 1 if signature.is_sequence else size
        rounds = count if signature.is_sequence else count // gcd(count, size)
        _check_size(model, _size(stream) * size * rounds // count)
        batched.append(
            [
                _joined_batch(model, [stream[(at * distance + i) % count] for i in range(size)])
                for at in range(rounds)
            ]
        )
    return batched


def _joined_batch(model: ModelPlan, steps: Sequence[Step]) -> Step:
    first = steps[0]
    names = [tensor.name for tensor in first.inputs]
    if any([tensor.name for tensor in step.inputs] != names for step in steps):
        raise InputError(
            f"-b: steps of model '{model.name}' have different inputs, which cannot be in one "
            "batch: use -b 1"
        )
    shape_tensors = {spec.name for spec in input_specs(model) if spec.is_shape}
    expected = [step.expected for step in steps]
    return Step(
        tuple(
            _shared_tensor(model, tensors)
            if tensors[0].name in shape_tensors
            else _joined_tensor(model, tensors)
            for tensors in zip(*(step.inputs for step in steps), strict=True)
        ),
        tuple(_joined_tensor(model, tensors) for tensors in zip(*expected, strict=True))
        if len({tuple(tensor.name for tensor in tensors) for tensors in expected}) == 1
        else (),
    )


def _joined_tensor(model: ModelPlan, tensors: Sequence[Tensor]) -> Tensor:
    first = tensors[0]
    for other in tensors:
        if first.shape != other.shape:
            raise InputError(
                f"-b: tensor '{first.name}' of model '{model.name}' has the shapes "
                f"{format_shape(first.shape)} and {format_shape(other.shape)}, which cannot be in "
                "one batch: use -b 1"
            )
    raw = b"".join(tensor.raw for tensor in tensors) if len(tensors) > 1 else first.raw
    return Tensor(first.name, first.datatype, (len(tensors), *first.shape), raw)


def _shared_tensor(model: ModelPlan, tensors: Sequence[Tensor]) -> Tensor:
    """Return a batch's shape tensor, which holds for the whole batch."""
    if any(tensor != tensors[0] for tensor in tensors):
        raise InputError(
            f"-b: shape tensor '{tensors[0].name}' of model '{model.name}' differs between steps, "
            "which cannot be in one batch: use -b 1"
        )
    return tensors[0]
