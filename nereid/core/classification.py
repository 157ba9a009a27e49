"""The classification extension, as heads tell it: which outputs are wanted as their best classes.

Clients ask for at most so many classes in place of a tensor; gateways hand nothing else on. An
ensemble asks more of a step's model: to tell classes by other labels than its own, and for the
tensor as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import Internal
from nereid.core.messages import CLASSIFICATION

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from nereid.pb import kserve_pb2, model_config_pb2

    Output = kserve_pb2.ModelInferRequest.InferRequestedOutputTensor

_LABELS: Final = "classification_labels"
_BESIDE: Final = "classification_beside"


class Classification(NamedTuple):
    """What is wanted of an output. labels None: the model's own.

    beside: its classes are another output of the answer, of the same name and behind all others.
    """

    most: int
    labels: tuple[str, ...] | None = None
    beside: bool = False


def classifications(outputs: Iterable[Output]) -> dict[str, Classification]:
    """By the names of those outputs that are wanted as classes; the first mention counts."""
    wanted: dict[str, Classification] = {}
    for output in outputs:
        parameters = output.parameters
        most = parameters[CLASSIFICATION].int64_param if CLASSIFICATION in parameters else 0
        if most and output.name not in wanted:
            labels = None
            if _LABELS in parameters:
                labels = tuple(parameters[_LABELS].string_param.split("\n"))
            wanted[output.name] = Classification(most, labels, _BESIDE in parameters)
    return wanted


def classify_output(output: Output, wanted: Classification) -> None:
    """Ask for an output's classes."""
    output.parameters[CLASSIFICATION].int64_param = wanted.most
    if wanted.labels is not None:
        output.parameters[_LABELS].string_param = "\n".join(wanted.labels)
    if wanted.beside:
        output.parameters[_BESIDE].bool_param = True


def read_labels(
    config: model_config_pb2.ModelConfig, model_path: Path
) -> dict[str, tuple[str, ...]]:
    """The labels of each output that has a label file, a label a line.

    Raises:
        Internal: a label file cannot be read.
    """
    labels = {}
    for output in config.output:
        if not output.label_filename:
            continue
        path = model_path / output.label_filename
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise Internal(f"failed to open text file for read {path}: {error.strerror}") from error
        labels[output.name] = tuple(text.split("\n"))
    return labels
