"""Reads the mapping of a text model from its configuration and files.

A model declares it in `text.json` beside its configuration, or in the parameter `text`. What it
leaves out is guessed from Hugging Face's files and from the tensors. A model that declares nothing
is a text model if its tensors and files are those of a known kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import BYTES
from nereid.core.tensors.shapes import VARIABLE
from nereid.model_config.padding import read_padding
from nereid.text import files as text_files
from nereid.text.decision_reading import MANIFESTS, check_package, read_decisions, read_package
from nereid.text.documents import Document, parse_document
from nereid.text.generation import read_generation
from nereid.text.hugging_face import MAX_LABELS, POOLINGS, HuggingFaceFiles
from nereid.text.mapping import (
    CLASSIFY,
    DECIDE,
    EMBED,
    EMBED_SPARSE,
    GENERATE,
    RANK,
    SPLADE,
    TRANSCRIBE,
    TextMapping,
)
from nereid.text.tensors import (
    IDS,
    LOGITS_TO_KEEP,
    TEXT_INPUT,
    TEXT_OUTPUT,
    USUAL_INPUTS,
    Tensors,
    TextInput,
    datatype,
    read_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nereid.pb.model_config_pb2 import ModelConfig
    from nereid.text.decisions import DecisionMapping
    from nereid.text.generation import Generation
    from nereid.text.layers import Layer

PARAMETER: Final = "text"
TASKS: Final = (EMBED, EMBED_SPARSE, RANK, CLASSIFY, DECIDE, GENERATE, TRANSCRIBE)
ACTIVATIONS: Final = ("softmax", "sigmoid", "none")
KEYS: Final = (
    "task",
    "inputs",
    "output",
    "pooling",
    "normalize",
    "dimensions",
    "prompts",
    "default_prompt",
    "labels",
    "activation",
    "max_tokens",
    "tokenizer",
    "pad_id",
    "decisions",
    "generation",
)
_FLOATS: Final = frozenset({"FP16", "BF16", "FP32", "FP64"})
# Vectors may be quantized.
_NUMBERS: Final = _FLOATS | {"INT8"}
# Usual names of outputs, the preferred first.
_VECTORS: Final = ("sentence_embedding", "last_hidden_state", "token_embeddings", "pooler_output")
_LOGITS: Final = "logits"
_MARKS: Final = frozenset({text_files.MAPPING, text_files.TOKENIZER, *MANIFESTS})
_PACKAGE_OUTPUT: Final = "option_logits"


def read_mapping(config: ModelConfig, files: Mapping[str, bytes]) -> TextMapping | None:
    """Return how texts become the model's tensors; `None` if it is not a text model.

    `config` is complete. Keys of `files` are those of `nereid.text.files`. Raises InvalidArgument
    with the file and the key that are wrong.
    """
    declared = _declared(config, files)
    tensors = Tensors(config)
    if declared is None:
        if not _is_known_kind(tensors, files):
            return None
        declared = Document(text_files.MAPPING, {})
    return _Reader(config, files, tensors, declared).read()


def may_be_text_model(config: ModelConfig, file_names: Collection[str]) -> bool:
    """Return whether `read_mapping` may find a mapping; cheap, for lists of many models."""
    return (
        PARAMETER in config.parameters
        or not _MARKS.isdisjoint(file_names)
        or Tensors(config).are_of_generator()
    )


def _declared(config: ModelConfig, files: Mapping[str, bytes]) -> Document | None:
    declared = None
    if text_files.MAPPING in files:
        declared = parse_document(text_files.MAPPING, files[text_files.MAPPING])
    if PARAMETER in config.parameters:
        source = f"parameter '{PARAMETER}'"
        if declared is not None:
            raise InvalidArgument(f"{source}: the model has a {text_files.MAPPING} as well")
        declared = parse_document(source, config.parameters[PARAMETER].string_value)
    if declared is not None:
        declared.refuse_unknown(KEYS)
    return declared


def _is_known_kind(tensors: Tensors, files: Mapping[str, bytes]) -> bool:
    """Return whether a model that declares nothing takes text."""
    if any(name in files for name in MANIFESTS) or tensors.are_of_generator():
        return True
    ids = tensors.inputs.get(USUAL_INPUTS["ids"])
    if ids is None or datatype(ids) not in IDS or text_files.TOKENIZER not in files:
        return False
    if _other_inputs(tensors, (*USUAL_INPUTS.values(), LOGITS_TO_KEEP)):
        return False
    facts = HuggingFaceFiles(files)
    return (
        any(name in tensors.outputs for name in _VECTORS)
        or _classifies(tensors, facts)
        or _predicts_tokens(tensors, facts)
        or (facts.is_splade and _LOGITS in tensors.outputs)
    )


def _other_inputs(tensors: Tensors, names: Collection[str]) -> list[str]:
    """Return the inputs besides these that each request must have."""
    return [n for n, tensor in tensors.inputs.items() if n not in names and not tensor.optional]


def _classifies(tensors: Tensors, facts: HuggingFaceFiles) -> bool:
    """Return whether logits are of labels; those of tokens have a dimension more."""
    logits = tensors.outputs.get(_LOGITS)
    if logits is None or len(logits.dims) + tensors.batches != 2:
        return False
    return facts.is_classifier or not facts.architectures


def _predicts_tokens(tensors: Tensors, facts: HuggingFaceFiles) -> bool:
    """Return whether logits are those of the token that follows each one."""
    logits = tensors.outputs.get(_LOGITS)
    return facts.is_causal and logits is not None and len(logits.dims) + tensors.batches == 3


def _check_sizes(size: int, layers: Sequence[Layer]) -> None:
    """Raise InvalidArgument if a layer is not for the vectors of the one before."""
    for layer in filter(lambda layer: layer.weights, layers):
        if size not in {VARIABLE, layer.inputs}:
            raise InvalidArgument(
                f"{layer.weights}: it is for vectors of {layer.inputs} values, not of {size}"
            )
        size = layer.outputs


class _Output(NamedTuple):
    name: str
    # Dims of one row.
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """Length of a vector, -1 if it is not known."""
        return self.dims[-1] if self.dims else VARIABLE


class _Reader:
    def __init__(
        self,
        config: ModelConfig,
        files: Mapping[str, bytes],
        tensors: Tensors,
        declared: Document,
    ) -> None:
        self._config = config
        self._files = files
        self._tensors = tensors
        self._declared = declared
        manifests = (parse_document(name, files[name]) for name in MANIFESTS if name in files)
        # The manifest of a package of decisions.
        self._manifest = next(manifests, None)
        if self._manifest is not None and not declared.values:
            # The problem with its kind comes before those with its tensors.
            check_package(self._manifest)
        self._facts = HuggingFaceFiles(files)
        self._inputs = read_inputs(declared.section("inputs"), tensors)

    def read(self) -> TextMapping:
        tasks = self._tasks()
        self._check_other_inputs(tasks)
        output = self._output(tasks)
        labels = self._labels(tasks, output)
        tasks = tasks or frozenset({RANK if len(labels) == 1 else CLASSIFY})
        pooling, layers, normalizes = self._pooling(tasks, output)
        size = layers[-1].outputs if layers else output.size
        dimensions, matryoshka = self._dimensions(size)
        ids = self._inputs.get("ids")
        prompts = self._prompts()
        template = self._chat_template(tasks)
        fixed_tokens = 0 if ids is None else max(self._tensors.inputs[ids.name].dims[-1], 0)
        return TextMapping(
            tasks,
            ids,
            self._inputs.get("mask"),
            self._inputs.get("types"),
            self._inputs.get("positions"),
            self._first_position(),
            self._logits_to_keep(),
            self._inputs.get("text"),
            output.name,
            pooling=pooling,
            layers=layers,
            normalizes=normalizes,
            dimensions=dimensions,
            matryoshka=matryoshka,
            prompts=prompts,
            default_prompt=self._default_prompt(prompts),
            labels=labels,
            activation=self._activation(tasks, labels),
            max_tokens=self._max_tokens(fixed_tokens),
            fixed_tokens=fixed_tokens,
            tokenizer=self._tokenizer(),
            pad_id=self._declared.count("pad_id", self._facts.pad_id()),
            keeps_tokens=self._keeps_tokens(output, fixed_tokens),
            batches_lengths=ids is not None and self._batches_lengths(ids),
            chat_template=template,
            special_tokens=self._facts.special_tokens(),
            generation=self._generation(tasks, template),
            decisions=self._decisions(tasks, labels, output),
        )

    def _tasks(self) -> frozenset[str]:
        """Return the tasks; empty if the number of labels decides between two."""
        declared = self._declared
        value = declared.values.get("task")
        tasks = (value,) if isinstance(value, str) else declared.strings("task")
        for task in tasks:
            if task not in TASKS:
                raise declared.refuse("task", f"expected one of {', '.join(TASKS)}")
        if tasks:
            return frozenset(tasks)
        if self._manifest is not None or declared.has("decisions"):
            return frozenset({DECIDE})
        if self._is_generator() or declared.has("generation"):
            return frozenset({GENERATE})
        if declared.has("labels") or declared.has("activation"):
            return frozenset()
        return self._usual_tasks()

    def _usual_tasks(self) -> frozenset[str]:
        declared = self._declared
        output = declared.string("output")
        if output:
            self._check_is_output(output)
        usual = [output] if output else self._tensors.outputs
        if declared.has("pooling") or any(name in _VECTORS for name in usual):
            return frozenset({EMBED})
        if _predicts_tokens(self._tensors, self._facts):
            return frozenset({GENERATE})
        if _classifies(self._tensors, self._facts) or self._facts.is_classifier:
            return frozenset()
        if self._facts.is_splade:
            return frozenset({EMBED_SPARSE})
        raise declared.refuse("task", f"say one of {', '.join(TASKS)}")

    def _is_generator(self) -> bool:
        text = self._inputs.get("text")
        return text is not None and text.name == TEXT_INPUT and self._tensors.are_of_generator()

    def _check_other_inputs(self, tasks: frozenset[str]) -> None:
        """Refuse a model that needs tensors which no text gives."""
        if TRANSCRIBE in tasks and (len(tasks) > 1 or "text" not in self._inputs):
            raise self._declared.refuse("task", "a model that transcribes takes bytes of files")
        others = _other_inputs(self._tensors, [tensor.name for tensor in self._inputs.values()])
        # Models that generate or decide get further inputs from their own sections.
        if others and not tasks & {GENERATE, DECIDE}:
            problem = f"the model needs input '{others[0]}' as well"
            raise self._declared.refuse("inputs", problem)

    def _output(self, tasks: frozenset[str]) -> _Output:
        declared, outputs = self._declared, self._tensors.outputs
        name = declared.string("output") or self._usual_output(tasks)
        self._check_is_output(name)
        allowed = _NUMBERS if EMBED in tasks else _FLOATS
        if tasks & {GENERATE, DECIDE}:
            allowed |= {BYTES}
        if TRANSCRIBE in tasks:
            allowed = frozenset({BYTES})
        if GENERATE in tasks and "ids" in self._inputs:
            # The model gives tokens, or logits of them.
            allowed = _FLOATS | IDS
        if datatype(outputs[name]) not in allowed:
            expected = ", ".join(sorted(allowed))
            problem = f"output '{name}' is of type {datatype(outputs[name])}, expected {expected}"
            raise declared.refuse("output", problem)
        dims = tuple(outputs[name].dims)
        return _Output(name, dims[1:] if self._has_batch_dim(dims) else dims)

    def _check_is_output(self, name: str) -> None:
        if name not in self._tensors.outputs:
            problem = f"the model has no output '{name}'" if name else "say which output it is"
            raise self._declared.refuse("output", problem)

    def _has_batch_dim(self, dims: tuple[int, ...]) -> bool:
        """Return whether an output's dims begin with that of the batch."""
        if self._tensors.batches:
            return False
        if "text" in self._inputs:
            return len(dims) > 1
        return self._inputs["ids"].rank > 1

    def _usual_output(self, tasks: frozenset[str]) -> str:
        usual: tuple[str, ...] = _VECTORS if EMBED in tasks else (_LOGITS,)
        if GENERATE in tasks:
            usual = (TEXT_OUTPUT, _LOGITS)
        elif DECIDE in tasks:
            usual = (_PACKAGE_OUTPUT, _LOGITS)
        outputs = self._tensors.outputs
        only = next(iter(outputs)) if len(outputs) == 1 else ""
        return next((name for name in usual if name in outputs), only)

    def _labels(self, tasks: frozenset[str], output: _Output) -> tuple[str, ...]:
        declared = self._declared
        if tasks and not tasks & {RANK, CLASSIFY}:
            if declared.has("labels") and DECIDE not in tasks:
                raise declared.refuse("labels", "only models that classify have labels")
            return declared.strings("labels")
        if len(output.dims) > 1:
            problem = f"output '{output.name}' has more than one vector for each row"
            raise declared.refuse("output", problem)
        labels = declared.strings("labels") or self._facts.labels()
        if not labels:
            unknown = 1 if tasks == {RANK} else 0
            count = min(output.size, MAX_LABELS) if output.size > 0 else unknown
            labels = tuple(f"LABEL_{index}" for index in range(count))
        if output.size not in {VARIABLE, len(labels)}:
            problem = f"{len(labels)}, but output '{output.name}' has {output.size} values"
            raise declared.refuse("labels", problem)
        if tasks == {RANK} and len(labels) > 1:
            raise declared.refuse("labels", "a model that ranks has one score for each row")
        return labels

    def _activation(self, tasks: frozenset[str], labels: tuple[str, ...]) -> str:
        declared = self._declared
        activation = declared.string("activation")
        if activation and activation not in ACTIVATIONS:
            raise declared.refuse("activation", f"expected one of {', '.join(ACTIVATIONS)}")
        if activation == "softmax" and len(labels) == 1:
            raise declared.refuse("activation", "softmax of one value is always 1")
        if activation or not tasks & {RANK, CLASSIFY}:
            return activation or "softmax"
        return self._facts.activation(len(labels))

    def _pooling(
        self, tasks: frozenset[str], output: _Output
    ) -> tuple[str, tuple[Layer, ...], bool]:
        """Return the pooling, the layers behind it, and whether vectors are normalized."""
        declared = self._declared
        if EMBED not in tasks:
            for key in ("pooling", "normalize", "dimensions"):
                if declared.has(key):
                    raise declared.refuse(key, "only models that embed have it")
            return self._sparse_pooling(tasks, output), (), False
        pooling = declared.string("pooling")
        layers: tuple[Layer, ...] = ()
        per_token = len(output.dims) > 1
        if pooling and pooling not in POOLINGS:
            raise declared.refuse("pooling", f"expected one of {', '.join(POOLINGS)}")
        if pooling and not per_token:
            raise declared.refuse("pooling", f"output '{output.name}' has one vector for each row")
        if per_token and "text" in self._inputs:
            raise self._refuse_vectors_of_tokens(output)
        if per_token and not pooling:
            # Only then does it matter whether the files have a pooling that is unknown here.
            pooling, layers = self._facts.pooling()
            _check_sizes(output.size, layers)
        return pooling, layers, declared.boolean("normalize", default=self._facts.normalizes())

    def _sparse_pooling(self, tasks: frozenset[str], output: _Output) -> str:
        if EMBED_SPARSE not in tasks:
            return ""
        if len(tasks) > 1:
            raise self._declared.refuse("task", f"{EMBED_SPARSE} excludes other tasks")
        self._facts.check_splade()
        if len(output.dims) == 1:
            return ""
        if "text" in self._inputs:
            raise self._refuse_vectors_of_tokens(output)
        return SPLADE

    def _refuse_vectors_of_tokens(self, output: _Output) -> InvalidArgument:
        problem = f"output '{output.name}' has one vector for each token"
        return self._declared.refuse("output", problem)

    def _dimensions(self, size: int) -> tuple[tuple[int, ...], bool]:
        declared = self._declared
        value = declared.values.get("dimensions")
        if isinstance(value, bool):
            return (), value
        dimensions = declared.counts("dimensions")
        matryoshka = bool(dimensions)
        if value is None:
            dimensions, matryoshka = self._facts.dimensions(), self._facts.is_matryoshka()
        longest = size if size > 0 else max(dimensions, default=1)
        if any(not 1 <= length <= longest for length in dimensions):
            raise declared.refuse("dimensions", "expected lengths from 1 to that of the vectors")
        return tuple(sorted({*dimensions})), matryoshka

    def _prompts(self) -> dict[str, str]:
        if self._declared.has("prompts"):
            return self._declared.texts("prompts")
        return self._facts.prompts()

    def _default_prompt(self, prompts: Mapping[str, str]) -> str:
        name = self._declared.string("default_prompt")
        if name and name not in prompts:
            raise self._declared.refuse("default_prompt", "there is no prompt of this name")
        name = name or self._facts.default_prompt()
        return name if name in prompts else ""

    def _max_tokens(self, fixed_tokens: int) -> int:
        limits = [fixed_tokens, self._declared.count("max_tokens") or self._facts.max_tokens()]
        if self._manifest is not None:
            limits.append(self._manifest.section("limits").count("max_tokens"))
        return min(filter(None, limits), default=0)

    def _first_position(self) -> int:
        return self._facts.first_position() if "positions" in self._inputs else 0

    def _logits_to_keep(self) -> TextInput | None:
        tensor = self._tensors.inputs.get(LOGITS_TO_KEEP)
        if tensor is None or "ids" not in self._inputs or datatype(tensor) not in IDS:
            return None
        return TextInput(tensor.name, datatype(tensor), len(tensor.dims) + self._tensors.batches)

    def _keeps_tokens(self, output: _Output, fixed_tokens: int) -> bool:
        state = self._config.sequence_batching.state
        if "ids" not in self._inputs or not state:
            return False
        if fixed_tokens:
            problem = f"a model with state takes any number of tokens, not {fixed_tokens}"
            raise self._declared.refuse("inputs", problem)
        return datatype(self._tensors.outputs[output.name]) in _NUMBERS

    def _tokenizer(self) -> str:
        declared = self._declared
        name = declared.string("tokenizer")
        if not name and self._manifest is not None:
            name = self._manifest.section("tokenizer").string("path")
        if not name and "text" in self._inputs:
            # Gateways count tokens by it if it is there.
            return text_files.TOKENIZER if text_files.TOKENIZER in self._files else ""
        name = name or text_files.TOKENIZER
        if name not in self._files:
            raise declared.refuse("tokenizer", f"the model's directory has no file '{name[:200]}'")
        return name

    def _batches_lengths(self, ids: TextInput) -> bool:
        if self._tensors.inputs[ids.name].allow_ragged_batch:
            return True
        padding = read_padding(self._config)
        if padding is None:
            return False
        return any(tensor.name == ids.name for size in padding.sizes for tensor in size.inputs)

    def _chat_template(self, tasks: frozenset[str]) -> str:
        declared = self._section("generation", GENERATE, tasks).string("chat_template")
        return declared or self._facts.chat_template()

    def _generation(self, tasks: frozenset[str], template: str) -> Generation | None:
        section = self._section("generation", GENERATE, tasks)
        if GENERATE not in tasks:
            return None
        prompt_inputs = [tensor.name for tensor in self._inputs.values()]
        if self._logits_to_keep() is not None:
            prompt_inputs.append(LOGITS_TO_KEEP)
        return read_generation(section, self._config, self._facts, prompt_inputs, template)

    def _decisions(
        self, tasks: frozenset[str], labels: tuple[str, ...], output: _Output
    ) -> DecisionMapping | None:
        section = self._section("decisions", DECIDE, tasks)
        if DECIDE not in tasks:
            return None
        if "ids" not in self._inputs:
            raise self._declared.refuse("inputs", "models that decide take token ids")
        if self._manifest is not None and not section.values:
            return read_package(self._manifest, self._files, self._tensors)
        labels = labels or self._facts.labels()
        return read_decisions(section, labels, self._tensors, output.size)

    def _section(self, key: str, task: str, tasks: frozenset[str]) -> Document:
        """Return what the model declares for one task."""
        if self._declared.has(key) and task not in tasks:
            raise self._declared.refuse(key, f"the model does not have the task {task}")
        return self._declared.section(key)
