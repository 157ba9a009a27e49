"""Findings about configurations that load, but may not do what their authors expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.tensors.shapes import VARIABLE, format_shape
from nereid.facts.batching import advise_batching
from nereid.facts.findings import Finding, Severity
from nereid_mesh.check.parameters import misspelled, unused_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.backends import ModelDescription
    from nereid.pb.model_config_pb2 import ModelConfig, ModelInput, ModelOutput


def advise(config: ModelConfig, description: ModelDescription | None) -> list[Finding]:
    """Return findings about a model that was loaded without errors."""
    return [*advise_batching(config, description), *_traps(config)]


def _traps(config: ModelConfig) -> Iterator[Finding]:
    for written, known in misspelled(config):
        yield Finding(
            Severity.WARNING,
            "unknown-parameter",
            f"nothing reads the parameter '{written}'",
            f"did you mean '{known}'?",
        )
    for name, reason in unused_parameters(config):
        yield Finding(
            Severity.WARNING,
            "unknown-parameter",
            f"nothing reads the parameter '{name}'",
            reason,
        )
    tensors: list[ModelInput | ModelOutput] = [*config.input, *config.output]
    if (
        config.max_batch_size > 0
        and tensors
        and all(len(tensor.dims) > 1 and tensor.dims[0] == VARIABLE for tensor in tensors)
    ):
        shape = format_shape((VARIABLE, *tensors[0].dims))
        yield Finding(
            Severity.WARNING,
            "batch-dimension-in-dims",
            f"all dims begin with -1, and max_batch_size is {config.max_batch_size}: clients have"
            f" to send '{tensors[0].name}' as {shape}",
            "dims leave the batch dimension out where max_batch_size is above 0",
        )
    if config.response_cache.enable and config.HasField("sequence_batching"):
        yield Finding(
            Severity.WARNING,
            "cache-of-sequences",
            "response_cache has no effect: responses of sequences are not cached",
        )
    yield from _warmup(config)


def _warmup(config: ModelConfig) -> Iterator[Finding]:
    sequence = config.sequence_batching
    known = {tensor.name for tensor in config.input}
    known |= {control.name for control in sequence.control_input}
    known |= {state.input_name for state in sequence.state}
    for sample in config.model_warmup:
        if not sample.batch_size:
            yield Finding(
                Severity.WARNING,
                "warmup-skipped",
                f"the warm-up sample '{sample.name}' is skipped: its batch_size is 0",
                "set batch_size, 1 also for a model without batching",
            )
        for name in sorted(set(sample.inputs) - known):
            yield Finding(
                Severity.WARNING,
                "warmup-input",
                f"the warm-up sample '{sample.name}' has an input '{name}' that the model has not;"
                " it is ignored",
                f"the model has {', '.join(sorted(known))}",
            )
