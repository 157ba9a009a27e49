"""The classification extension: parameters that request an output's top classes.

Clients request a number of classes in place of a tensor; gateways forward no other parameter. An
ensemble may request more of a step's model: classes with other labels, and the tensor as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import Internal
from nereid.core.files.regular_files import read_regular_file
from nereid.core.wire.messages import CLASSIFICATION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from nereid.pb import kserve_pb2, model_config_pb2

    Output = kserve_pb2.ModelInferRequest.InferRequestedOutputTensor

_LABELS: Final = "classification_labels"
_BESIDE: Final = "classification_beside"


class Classification(NamedTuple):
    """Classes requested of an output.

    labels: labels of the classes; None means the model's own.
    beside: whether the tensor is wanted, too. Then the classes are another output of the response,
        with the same name and after all others.
    """

    most: int
    labels: tuple[str, ...] | None = None
    beside: bool = False


def requested_classifications(outputs: Iterable[Output]) -> dict[str, Classification]:
    """Return the requested classes by output name; the first of equal names counts."""
    classifications: dict[str, Classification] = {}
    for output in outputs:
        parameters = output.parameters
        most = parameters[CLASSIFICATION].int64_param if CLASSIFICATION in parameters else 0
        if most and output.name not in classifications:
            labels = None
            if _LABELS in parameters:
                labels = tuple(parameters[_LABELS].string_param.split("\n"))
            classifications[output.name] = Classification(most, labels, _BESIDE in parameters)
    return classifications


def request_classification(output: Output, wanted: Classification) -> None:
    """Add the parameters that request an output's classes."""
    output.parameters[CLASSIFICATION].int64_param = wanted.most
    if wanted.labels is not None:
        output.parameters[_LABELS].string_param = "\n".join(wanted.labels)
    if wanted.beside:
        output.parameters[_BESIDE].bool_param = True


def read_labels(
    config: model_config_pb2.ModelConfig,
    model_path: Path,
    read: Callable[[str], bytes] | None = None,
) -> dict[str, tuple[str, ...]]:
    """Return the labels of each output with a label file: one label per line.

    read: reads a file by its path in the model's directory, if the directory is not on this host.

    Raises:
        Internal: a label file cannot be read.
    """
    labels = {}
    for output in config.output:
        if not output.label_filename:
            continue
        path = model_path / output.label_filename
        try:
            content = read_regular_file(path) if read is None else read(output.label_filename)
        except OSError as error:
            raise Internal(f"failed to open text file for read {path}: {error.strerror}") from error
        text = content.decode("utf-8", errors="replace")
        # Translate line ends like a file that is opened as text.
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        labels[output.name] = tuple(text.split("\n"))
    return labels
