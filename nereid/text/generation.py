"""Parameters of requests as inputs of a model that generates, and the meaning of its outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nereid.core.tensors.datatypes import BYTES, NAME_OF_CONFIG_NUMBER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nereid.pb.model_config_pb2 import ModelConfig
    from nereid.text.documents import Document
    from nereid.text.hugging_face import HuggingFaceFiles

# Parameters of sampling that a model may take, and the usual names of their inputs.
SAMPLING: Final[dict[str, tuple[str, ...]]] = {
    "max_tokens": ("max_tokens",),
    "min_tokens": ("min_tokens", "min_length"),
    "ignore_eos": ("ignore_eos",),
    "temperature": ("temperature",),
    "top_p": ("top_p", "runtime_top_p"),
    "top_k": ("top_k", "runtime_top_k"),
    "min_p": ("min_p",),
    "seed": ("seed", "random_seed"),
    "stop": ("stop", "stop_words"),
    "frequency_penalty": ("frequency_penalty",),
    "presence_penalty": ("presence_penalty",),
    "repetition_penalty": ("repetition_penalty",),
}
SAMPLING_PARAMETERS: Final = "sampling_parameters"
# Inputs that say what a response has to contain. Names are those of Triton's backends.
_SWITCHES: Final = {
    "stream": ("stream", "streaming"),
    "exclude_prompt": ("exclude_input_in_output", "sampling_param_exclude_input_from_output"),
    "with_finish_reason": ("return_finish_reason",),
    "with_prompt_tokens": ("return_num_input_tokens",),
    "with_completion_tokens": ("return_num_output_tokens",),
    "with_logprobs": ("return_logprobs", "return_log_probs"),
}
# A JSON schema that the text has to match, and how it is given: "json_schema", or "json" for any
# object. vLLM's backend takes it within its sampling parameters.
_SCHEMA: Final = {
    "schema": ("guided_decoding_guide",),
    "schema_kind": ("guided_decoding_guide_type",),
}
_OUTPUTS: Final = {
    "finish_reason": ("finish_reason",),
    "prompt_tokens": ("num_input_tokens",),
    "completion_tokens": ("num_output_tokens",),
    "logprobs": ("logprobs", "output_log_probs"),
}
_INPUTS: Final = {
    # TensorRT-LLM's backend for its LLM API has a prefix.
    **{role: (*usual, f"sampling_param_{role}") for role, usual in SAMPLING.items()},
    SAMPLING_PARAMETERS: (SAMPLING_PARAMETERS,),
    **_SWITCHES,
    **_SCHEMA,
}
_TEXTS: Final = frozenset({"stop", SAMPLING_PARAMETERS, *_SCHEMA})
_BOOLEANS: Final = frozenset({"ignore_eos", *_SWITCHES})
_NUMBERS: Final = frozenset({"INT32", "INT64", "UINT32", "UINT64", "FP32", "FP64"})
TOOL_PARSERS: Final = ("hermes", "mistral", "llama3_json")
# Texts of chat templates by which their tool calls are known.
_TOOL_MARKS: Final = {
    "<tool_call>": "hermes",
    "[TOOL_CALLS]": "mistral",
    "<|python_tag|>": "llama3_json",
}
_KEYS: Final = (
    "inputs",
    "parameters",
    "outputs",
    "max_tokens",
    "chat_template",
    "tool_parser",
    "eos_ids",
)
_DEFAULT_MAX_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class GenerationInput:
    """An input of the model besides the prompt."""

    name: str
    datatype: str
    # Shape of one value. The last dimension is -1 if the input takes any number of them.
    shape: tuple[int, ...]

    @property
    def takes_many(self) -> bool:
        """True for an input of a list."""
        return self.shape[-1] < 0


@dataclass(frozen=True, slots=True)
class Generation:
    """Way in which parameters of a request become a model's tensors, and what its outputs mean."""

    # True if the model responds with text after text, or token after token.
    decoupled: bool = False
    # Keys: the names of SAMPLING, the switches, and the schema.
    inputs: Mapping[str, GenerationInput] = field(default_factory=dict)
    # Request parameters by the names of SAMPLING.
    parameters: Mapping[str, str] = field(default_factory=dict)
    # Names of outputs by their meaning.
    outputs: Mapping[str, str] = field(default_factory=dict)
    # For requests that name no limit. 0: the model decides.
    max_tokens: int = 0
    # "hermes", "mistral", "llama3_json" or "".
    tool_parser: str = ""
    # Tokens that end a text.
    eos_ids: frozenset[int] = frozenset()

    def takes(self, parameter: str) -> bool:
        """Return whether the model takes one of the parameters of SAMPLING."""
        inputs = self.inputs
        return parameter in inputs or parameter in self.parameters or SAMPLING_PARAMETERS in inputs

    @property
    def takes_schema(self) -> bool:
        """True if the model itself makes its text match a schema."""
        return "schema" in self.inputs or SAMPLING_PARAMETERS in self.inputs


def read_generation(
    section: Document,
    config: ModelConfig,
    facts: HuggingFaceFiles,
    prompt_inputs: Collection[str],
    chat_template: str,
) -> Generation:
    """Return a model's section `generation`, and guesses for what it leaves out.

    prompt_inputs: names of the inputs that get the prompt. Raises InvalidArgument.
    """
    section.refuse_unknown(_KEYS)
    inputs = _read_inputs(section, config, prompt_inputs)
    tool_parser = section.string("tool_parser") or _tool_parser_of(chat_template)
    if tool_parser and tool_parser not in TOOL_PARSERS:
        raise section.refuse("tool_parser", f"expected one of {', '.join(TOOL_PARSERS)}")
    max_tokens = section.count("max_tokens")
    limit = inputs.get("max_tokens")
    if limit is not None and not max_tokens and not _is_optional(config, limit.name):
        max_tokens = _DEFAULT_MAX_TOKENS
    return Generation(
        decoupled=config.model_transaction_policy.decoupled,
        inputs=inputs,
        parameters=_read_parameters(section),
        outputs=_read_outputs(section, config),
        max_tokens=max_tokens,
        tool_parser=tool_parser,
        eos_ids=frozenset(section.counts("eos_ids")) or facts.eos_ids(),
    )


def _read_inputs(
    section: Document, config: ModelConfig, prompt_inputs: Collection[str]
) -> dict[str, GenerationInput]:
    declared = section.section("inputs")
    declared.refuse_unknown(tuple(_INPUTS))
    tensors = {tensor.name: tensor for tensor in config.input if tensor.name not in prompt_inputs}
    leading = (1,) if config.max_batch_size > 0 else ()
    inputs = {}
    for role, usual in _INPUTS.items():
        name = declared.string(role) or next((name for name in usual if name in tensors), "")
        if not name:
            continue
        tensor = tensors.get(name)
        if tensor is None:
            raise declared.refuse(role, f"the model has no input '{name}' besides the prompt")
        datatype = NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "")
        allowed = _datatypes_of(role)
        if datatype not in allowed:
            expected = ", ".join(sorted(allowed))
            problem = f"input '{name}' is of type {datatype}, expected {expected}"
            raise declared.refuse(role, problem)
        dims = tuple(tensor.dims) or (1,)
        last = dims[-1] if role == "stop" else 1
        inputs[role] = GenerationInput(name, datatype, (*leading, *[1] * (len(dims) - 1), last))
    used = {tensor.name for tensor in inputs.values()}
    for name, tensor in tensors.items():
        if name not in used and not tensor.optional:
            raise section.refuse("inputs", f"the model needs input '{name}' as well")
    return inputs


def _datatypes_of(role: str) -> frozenset[str]:
    if role in _TEXTS:
        return frozenset({BYTES})
    return frozenset({"BOOL"}) if role in _BOOLEANS else _NUMBERS


def _is_optional(config: ModelConfig, name: str) -> bool:
    return any(tensor.name == name and tensor.optional for tensor in config.input)


def _read_parameters(section: Document) -> dict[str, str]:
    """Return request parameters: the model declares a list of names, or an object of them."""
    if isinstance(section.values.get("parameters"), list):
        parameters = {name: name for name in section.strings("parameters")}
    else:
        parameters = section.texts("parameters")
    for name in parameters:
        if name not in SAMPLING:
            raise section.refuse("parameters", f"expected names of {', '.join(SAMPLING)}")
    return parameters


def _read_outputs(section: Document, config: ModelConfig) -> dict[str, str]:
    declared = section.section("outputs")
    declared.refuse_unknown(tuple(_OUTPUTS))
    names = {tensor.name for tensor in config.output}
    outputs = {}
    for role, usual in _OUTPUTS.items():
        name = declared.string(role) or next((name for name in usual if name in names), "")
        if name and name not in names:
            raise declared.refuse(role, f"the model has no output '{name}'")
        if name:
            outputs[role] = name
    return outputs


def _tool_parser_of(template: str) -> str:
    return next((parser for mark, parser in _TOOL_MARKS.items() if mark in template), "")
