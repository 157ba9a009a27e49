"""Remedies for errors that loads report. Clients match the errors, so these never change."""

from __future__ import annotations

import re
from typing import Final

_REMEDIES: Final = tuple(
    (re.compile(pattern, re.DOTALL), remedy)
    for pattern, remedy in (
        (
            r"Protobuf parsing failed|No graph was found in the protobuf",
            (
                "the file is truncated or is no ONNX model: compare its size with the original's,"
                " and export or copy it again"
            ),
        ),
        (
            r"Opset (\d+) is under development.*is till opset (\d+)",
            r"export it for opset \2 or earlier, or install a newer onnxruntime",
        ),
        (
            r"unsupported datatype 'seq\(map\(",
            (
                'a classifier of skl2onnx: to_onnx(..., options={"zipmap": False}) makes its'
                " probabilities one tensor"
            ),
        ),
        (
            r"No Op registered for (\S+)|\S+:(\w+)\(-?\d+\) is not a registered function/op",
            (
                "give the library of custom operators by model_operations.op_library_filename, or"
                " export the model without them"
            ),
        ),
        (
            r"the model expects \d+ dimensions \(shape \[-1,.*an initial batch dimension",
            "write the dims that the model file has behind its batch dimension",
        ),
        (
            r"the model expects \d+ dimensions.*an initial batch dimension",
            (
                "leave the batch dimension out of dims; a model whose file has no variable first"
                " dimension needs max_batch_size: 0"
            ),
        ),
        (
            r"the model expects \d+ dimensions",
            "write the dims that the model file has; -1 for those that vary",
        ),
        (
            r"configuration expects datatype \w+ for (?:input|output) '\S+', model provides (\w+)",
            r"set data_type: \1",
        ),
        (
            r"unexpected inference (input|output) '[^']*' for model '[^']*', allowed \w+ are: (.*)",
            r"name the \1 as the model file does: \2",
        ),
        (
            r"has kind KIND_GPU but no GPUs are available|invalid or unsupported gpu id",
            "no executor has such a GPU: set kind: KIND_CPU or KIND_AUTO, or give it one",
        ),
        (
            r"configuration expects \d+ inputs, model provides \d+",
            (
                "each control_input is an input of the model: remove those that it does not have,"
                " or export it with them"
            ),
        ),
        (
            r"Expected \"[\]}]\"",
            "a bracket is not closed above this place",
        ),
        (
            r"unexpected directory name '([^']*)'",
            r"rename the folder, or set name to '\1'; it may be left out",
        ),
        (
            r"is not UTF-8 text",
            "save it as UTF-8 without a byte order mark",
        ),
        (
            r"contains models that are not available or ambiguous: (.*)",
            r"add the models of these steps, or mend why they do not load: \1",
        ),
        (
            r"is mapping to non-existing (input|output) \S+ in model (\S+)",
            r"the keys of \1_map are the tensors of the step: see the configuration of \2",
        ),
        (
            r"failed to open text file for read (\S+):",
            r"add \1, or take it out of the configuration",
        ),
        (
            r"preferred size must be <= max batch size",
            "raise max_batch_size, or lower dynamic_batching.preferred_batch_size",
        ),
        (
            r"model appears in two or more repositories",
            "remove one of them, or serve with --model-namespacing=true",
        ),
        (
            # Only a load shows how much memory a model takes.
            r"whose budget is \d|do not fit the memory budget",
            (
                "raise the scheduler's --model-memory-budget, or let models make way that stay"
                ' loaded (--load-model, lazy_loading "false")'
            ),
        ),
        (
            r"at least one version must be available",
            (
                "put the model's files into a folder named by a whole number, such as 1, that"
                " version_policy selects"
            ),
        ),
    )
)


def remedy_for(error: str) -> str:
    """Return the remedy as a sentence without a full stop; empty if none is known."""
    for pattern, remedy in _REMEDIES:
        match = pattern.search(error)
        if match is not None:
            return match.expand(remedy)
    return ""


def with_remedy(error: str) -> str:
    """Return the error followed by its remedy, for a line of the log."""
    remedy = remedy_for(error)
    return f"{error.rstrip()} ({remedy})" if remedy else error.rstrip()
