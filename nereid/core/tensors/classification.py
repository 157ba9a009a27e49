"""Classification extension: parameters with which clients request an output's top classes.

Gateways forward only the number of classes. An ensemble has two more parameters for its steps: one
replaces the labels, the other requests the tensor in addition to the classes.
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
    """Request for an output's top classes; `labels` is None for the model's labels.

    If `beside` is True, the response has the tensor too. The classes are then an output of the same
    name after all others.
    """

    class_count: int
    labels: tuple[str, ...] | None = None
    beside: bool = False


def requested_classifications(outputs: Iterable[Output]) -> dict[str, Classification]:
    """Map the names of outputs to their requested classes. A name's first request counts."""
    classifications: dict[str, Classification] = {}
    for output in outputs:
        parameters = output.parameters
        class_count = parameters[CLASSIFICATION].int64_param if CLASSIFICATION in parameters else 0
        if class_count and output.name not in classifications:
            labels = None
            if _LABELS in parameters:
                labels = tuple(parameters[_LABELS].string_param.split("\n"))
            classifications[output.name] = Classification(
                class_count, labels, _BESIDE in parameters
            )
    return classifications


def request_classification(output: Output, wanted: Classification) -> None:
    """Add parameters to a requested output, so that the response has the output's top classes."""
    output.parameters[CLASSIFICATION].int64_param = wanted.class_count
    if wanted.labels is not None:
        output.parameters[_LABELS].string_param = "\n".join(wanted.labels)
    if wanted.beside:
        output.parameters[_BESIDE].bool_param = True


def read_labels(
    config: model_config_pb2.ModelConfig,
    model_path: Path,
    read: Callable[[str], bytes] | None = None,
) -> dict[str, tuple[str, ...]]:
    """Map each output that has a label file to its labels, one per line; raises Internal.

    `read` is needed if the model's directory is not on this host.
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
        # As Python does when it opens a file as text.
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        labels[output.name] = tuple(text.split("\n"))
    return labels
