"""Configurations of ensembles, in short."""

from collections.abc import Iterable, Mapping
from pathlib import Path

# A step: the model (with ":version" if a certain one is meant), its inputs and its outputs, each
# by the model's name for a tensor and the ensemble's.
Step = tuple[str, Mapping[str, str], Mapping[str, str]]


def ensemble_config(
    inputs: Iterable[str], outputs: Iterable[str], steps: Iterable[Step], more: str = ""
) -> str:
    """inputs and outputs: 'name' (FP32 [2]), 'name TYPE dims' or 'name TYPE dims optional'."""
    text = 'platform: "ensemble"\n'
    for field, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            text += f"{field} {{ {_tensor(tensor)} }}\n"
    text += "ensemble_scheduling {\n"
    for model, taken, given in steps:
        name, _, version = model.partition(":")
        text += f'  step {{ model_name: "{name}" model_version: {version or -1}\n'
        for field, mapping in (("input_map", taken), ("output_map", given)):
            for key, value in mapping.items():
                text += f'    {field} {{ key: "{key}" value: "{value}" }}\n'
        text += "  }\n"
    return f"{text}}}\n{more}"


def _tensor(text: str) -> str:
    name, datatype, dims, *optional = text.split() if " " in text else (text, "FP32", "2")
    made = f'name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ]'
    return f"{made} optional: true" if optional else made


def save_ensemble(root: Path, name: str, config: str, versions: str = "1") -> None:
    """A model directory without any file but its configuration."""
    for version in versions.split():
        (root / name / version).mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(config)
