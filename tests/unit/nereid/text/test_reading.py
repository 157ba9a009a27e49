"""The mapping of text models: what they declare, and what is guessed of exports."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereid.core.errors import InvalidArgument
from nereid.text import TextInput, TextMapping, files, may_be_text_model, read_mapping
from tests.support.models.onnx_models import config

if TYPE_CHECKING:
    from nereid.pb.model_config_pb2 import ModelConfig

IDS = """
input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
"""
POSITIONS = 'input { name: "position_ids" data_type: TYPE_INT64 dims: [ -1 ] }\n'
NEXT = 'output { name: "logits" data_type: TYPE_FP32 dims: [ -1, 9 ] }\n'
STATE = """
sequence_batching {
  state { input_name: "p" output_name: "q" data_type: TYPE_FP32 dims: [ 2, -1 ] }
}
"""
CAUSAL = {"architectures": ["LlamaForCausalLM"]}
TYPES = 'input { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] }\n'
HIDDEN = 'output { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 8 ] }\n'
SENTENCE = """
output { name: "token_embeddings" data_type: TYPE_FP16 dims: [ -1, 8 ] }
output { name: "sentence_embedding" data_type: TYPE_FP16 dims: [ 8 ] }
"""
LOGITS = 'output { name: "logits" data_type: TYPE_FP32 dims: [ 3 ] }\n'
SCORE = 'output { name: "logits" data_type: TYPE_FP32 dims: [ 1 ] }\n'
VLLM = """
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
input { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
"""
TENSORRT_LLM = """
input { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] }
input { name: "max_tokens" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
"""
TEXT = """
input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "VECTOR" data_type: TYPE_FP32 dims: [ 8 ] }
"""
CLASSIFIER = {"architectures": ["BertForSequenceClassification"]}
POOLING = "sentence_transformers.models.Pooling"
NORMALIZE = "sentence_transformers.models.Normalize"


def configured(tensors: str, max_batch_size: int = 8, **parameters: str) -> ModelConfig:
    message = config(tensors)
    message.max_batch_size = max_batch_size
    for key, value in parameters.items():
        message.parameters[key].string_value = value
    return message


def model_files(**documents: Any) -> dict[str, bytes]:
    """Return files; `__` stands for a slash, and each is JSON. There is always a tokenizer."""
    contents = {
        f"{name.replace('__', '/')}.json": json.dumps(value).encode()
        for name, value in documents.items()
    }
    return {"tokenizer.json": b"{}", **contents}


def read(tensors: str, /, **documents: Any) -> TextMapping:
    mapping = read_mapping(configured(tensors), model_files(**documents))
    assert mapping is not None
    return mapping


def test_an_export_that_gives_token_vectors_embeds_by_their_mean() -> None:
    mapping = read(
        IDS + TYPES + HIDDEN,
        config={"architectures": ["BertModel"], "max_position_embeddings": 512, "pad_token_id": 7},
        tokenizer_config={"model_max_length": 256},
    )
    assert mapping == TextMapping(
        frozenset({"embed"}),
        TextInput("input_ids", "INT64"),
        TextInput("attention_mask", "INT64"),
        TextInput("token_type_ids", "INT64"),
        output="last_hidden_state",
        pooling="mean",
        normalizes=True,
        max_tokens=256,
        pad_id=7,
    )


def test_sentence_transformers_files_say_pooling_and_prompts() -> None:
    documents: dict[str, Any] = {
        "modules": [
            {"type": "sentence_transformers.models.Transformer", "path": ""},
            {"type": POOLING, "path": "1_Pooling"},
        ],
        "1_Pooling__config": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        "sentence_bert_config": {"max_seq_length": 128},
        "config_sentence_transformers": {
            "prompts": {"query": "query: ", "document": ""},
            "default_prompt_name": "document",
        },
        "config": {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1},
    }
    mapping = read(IDS + HIDDEN, **documents)
    assert (mapping.pooling, mapping.normalizes, mapping.max_tokens) == ("cls", False, 128)
    assert mapping.prompts == {"query": "query: ", "document": ""}
    assert mapping.default_prompt == "document"
    documents["modules"].append({"type": NORMALIZE, "path": "2_Normalize"})
    del documents["sentence_bert_config"]
    mapping = read(IDS + HIDDEN, **documents)
    assert (mapping.normalizes, mapping.max_tokens) == (True, 512)


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ""),
        ({"pooling_mode_weightedmean_tokens": True}, ""),
        ({"pooling_mode": "mean_sqrt_len"}, ""),
        ({}, ""),
    ],
)
def test_poolings(pooling: dict[str, object], mode: str) -> None:
    documents = {"modules": [{"type": POOLING, "path": "1_Pooling"}], "1_Pooling__config": pooling}
    if mode:
        assert read(IDS + HIDDEN, **documents).pooling == mode
    else:
        with pytest.raises(InvalidArgument, match=r"^1_Pooling/config.json: expected one of"):
            read(IDS + HIDDEN, **documents)


def test_a_model_that_pools_itself_has_no_pooling() -> None:
    mapping = read(IDS + SENTENCE)
    assert (mapping.output, mapping.pooling, mapping.normalizes) == ("sentence_embedding", "", True)


def test_modules_within_the_graph_need_not_be_known() -> None:
    modules = [{"type": "a.Pooling", "path": "x"}, {"type": "a.Dense"}, {"type": "a.Normalize"}]
    assert read(IDS + SENTENCE, modules=modules).normalizes
    assert not read(IDS + SENTENCE, modules=modules[:2]).normalizes
    mapping = read(IDS + HIDDEN, modules=modules, text={"pooling": "cls"})
    assert (mapping.pooling, mapping.normalizes) == ("cls", True)


def test_further_outputs_of_vectors() -> None:
    pooled = 'output { name: "pooler_output" data_type: TYPE_INT8 dims: [ 8 ] }\n'
    mapping = read(IDS + pooled)
    assert (mapping.output, mapping.pooling) == ("pooler_output", "")
    assert read(IDS + HIDDEN + pooled).output == "last_hidden_state"


@pytest.mark.parametrize(
    ("kind", "first", "padded"), [("bert", 0, 1), ("roberta", 2, 1), ("mpnet", 2, 1)]
)
def test_positions_are_those_of_the_architecture(kind: str, first: int, padded: int) -> None:
    mapping = read(IDS + POSITIONS + HIDDEN, config={"model_type": kind, "pad_token_id": 1})
    assert mapping.positions == TextInput("position_ids", "INT64")
    assert (mapping.first_position, mapping.padded_position) == (first, padded)


def modules(*kinds: str) -> list[dict[str, str]]:
    numbered = enumerate(kinds, 1)
    return [{"type": f"a.{kind}", "path": f"{place}_{kind}"} for place, kind in numbered]


@pytest.mark.parametrize(
    ("kinds", "layers", "normalizes"),
    [
        (("Pooling", "Dense", "Normalize"), ["Dense"], True),
        (("Pooling", "Dense"), ["Dense"], False),
        (("Pooling", "Normalize", "Dense", "Dropout"), ["Normalize", "Dense"], False),
        (("Pooling", "Dense", "LayerNorm", "Normalize"), ["Dense", "LayerNorm"], True),
    ],
)
def test_layers_behind_the_pooling(
    kinds: tuple[str, ...], layers: list[str], normalizes: bool
) -> None:
    files = model_files(
        modules=modules(*kinds), **{"1_Pooling__config": {"pooling_mode_cls_token": True}}
    )
    for place in (2, 3):
        sizes = {"in_features": 8, "out_features": 3, "dimension": 3}
        for kind in ("Dense", "LayerNorm"):
            files[f"{place}_{kind}/config.json"] = json.dumps(sizes).encode()
            files[f"{place}_{kind}/model.safetensors"] = b""
    mapping = read_mapping(configured(IDS + HIDDEN), files)
    assert mapping is not None
    assert [layer.kind for layer in mapping.layers] == layers
    assert (mapping.pooling, mapping.normalizes) == ("cls", normalizes)
    with pytest.raises(InvalidArgument, match="for vectors of 8 values, not of 9"):
        read_mapping(configured(IDS + HIDDEN.replace("8 ]", "9 ]")), files)


@pytest.mark.parametrize(
    ("kinds", "problem"),
    [
        (("StaticEmbedding",), "module StaticEmbedding has no ONNX graph"),
        (("WordEmbeddings", "Pooling"), "module WordEmbeddings has no ONNX graph"),
        (("Dense", "Pooling"), "module Dense cannot be applied"),
        (("CNN",), "module CNN cannot be applied; known behind the graph: Pooling, Normalize"),
    ],
)
def test_modules_that_cannot_be_applied(kinds: tuple[str, ...], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        read(IDS + HIDDEN, modules=modules(*kinds))


def test_a_decoder_generates_by_logits_of_each_token() -> None:
    mapping = read(IDS + POSITIONS + NEXT, config=CAUSAL)
    assert (mapping.tasks, mapping.keeps_tokens) == (frozenset({"generate"}), False)
    mapping = read(IDS + POSITIONS + NEXT + STATE, config=CAUSAL)
    assert (mapping.tasks, mapping.keeps_tokens) == (frozenset({"generate"}), True)
    assert read(IDS + HIDDEN + STATE, config=CAUSAL).keeps_tokens
    fixed = IDS.replace("-1", "16") + NEXT + STATE
    with pytest.raises(InvalidArgument, match="takes any number of tokens, not 16"):
        read(fixed, config=CAUSAL)


def test_a_decoder_embeds_by_its_last_token() -> None:
    assert read(IDS + HIDDEN, config={"architectures": ["Qwen2ForCausalLM"]}).pooling == "last"


@pytest.mark.parametrize(
    ("written", "activation"),
    [
        ({}, "sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, "sigmoid"),
    ],
)
def test_a_classifier_with_one_label_ranks(written: dict[str, object], activation: str) -> None:
    mapping = read(IDS + SCORE, config={**CLASSIFIER, "id2label": {"0": "LABEL_0"}, **written})
    assert (mapping.tasks, mapping.activation) == (frozenset({"rank"}), activation)


@pytest.mark.parametrize(
    ("problem", "activation"),
    [
        (None, "softmax"),
        ("single_label_classification", "softmax"),
        ("multi_label_classification", "sigmoid"),
        ("regression", "none"),
    ],
)
def test_a_classifier_has_its_labels(problem: str | None, activation: str) -> None:
    labels = {"2": "c", "0": "a", "1": "b"}
    facts = {**CLASSIFIER, "id2label": labels, "problem_type": problem}
    mapping = read(IDS + LOGITS, config=facts)
    assert (mapping.tasks, mapping.labels) == (frozenset({"classify"}), ("a", "b", "c"))
    assert (mapping.output, mapping.activation) == ("logits", activation)


def test_a_classifier_without_configuration_numbers_its_labels() -> None:
    assert read(IDS + LOGITS).labels == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize(
    ("facts", "count"), [({}, 2), ({"num_labels": 3}, 3), ({"id2label": {"0": "a"}}, 1)]
)
def test_a_classifier_may_leave_its_labels_out(facts: dict[str, object], count: int) -> None:
    tensors = IDS + LOGITS.replace("[ 3 ]", "[ -1 ]")
    mapping = read(tensors, config={**CLASSIFIER, **facts})
    assert len(mapping.labels) == count


def test_the_only_input_of_text_is_found() -> None:
    mapping = read(TEXT, text={"task": "embed"})
    assert (mapping.text, mapping.pooling) == (TextInput("TEXT", "BYTES"), "")
    mapping = read(VLLM.replace("[ 1 ]", "[ -1 ]"), text={})
    assert mapping.tokenizer == "tokenizer.json"


@pytest.mark.parametrize(("tensors", "interface"), [(VLLM, "vllm"), (TENSORRT_LLM, "tensorrt_llm")])
def test_tensors_of_tritons_backends_generate(tensors: str, interface: str) -> None:
    mapping = read_mapping(configured(tensors, 0), {})
    assert mapping is not None
    assert (mapping.tasks, mapping.output) == (frozenset({"generate"}), "text_output")
    assert mapping.text == TextInput("text_input", "BYTES", 1)
    assert mapping.generation is not None
    assert mapping.generation.takes("temperature") == (interface == "vllm")


@pytest.mark.parametrize(
    ("tensors", "names"),
    [
        (IDS + HIDDEN, []),
        (IDS + 'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }', ["tokenizer.json"]),
        (IDS.replace("INT64", "FP32") + HIDDEN, ["tokenizer.json"]),
        (
            f'{IDS} input {{ name: "pixels" data_type: TYPE_FP32 dims: [ 3 ] }} {HIDDEN}',
            ["tokenizer.json"],
        ),
        (
            f'{IDS} output {{ name: "logits" data_type: TYPE_FP32 dims: [ -1, 9 ] }}',
            ["tokenizer.json"],
        ),
        (TEXT, ["tokenizer.json"]),
        (VLLM.replace("text_output", "y"), []),
        (TEXT.replace("TEXT", "text_input").replace("VECTOR", "text_output"), []),
    ],
)
def test_other_models_are_no_text_models(tensors: str, names: list[str]) -> None:
    assert read_mapping(configured(tensors), dict.fromkeys(names, b"{}")) is None


def test_a_decoupled_model_generates_if_it_says_so() -> None:
    tensors = TEXT.replace("TYPE_FP32 dims: [ 8 ]", "TYPE_STRING dims: [ 1 ]")
    mapping = read(tensors, text={"generation": {"parameters": ["seed"]}})
    assert (mapping.tasks, mapping.output) == (frozenset({"generate"}), "VECTOR")
    assert mapping.generation is not None
    assert (mapping.generation.parameters, mapping.tokenizer) == (
        {"seed": "seed"},
        "tokenizer.json",
    )


def test_a_model_that_transcribes_takes_bytes() -> None:
    tensors = TEXT.replace("TYPE_FP32 dims: [ 8 ]", "TYPE_STRING dims: [ 1 ]")
    mapping = read(tensors, text={"task": "transcribe"})
    assert (mapping.text, mapping.output) == (TextInput("TEXT", "BYTES"), "VECTOR")
    with pytest.raises(InvalidArgument, match="of type FP32, expected BYTES"):
        read(TEXT, text={"task": "transcribe"})
    with pytest.raises(InvalidArgument, match="takes bytes of files"):
        read(IDS + HIDDEN, text={"task": "transcribe"})


def test_all_that_a_model_can_declare() -> None:
    tensors = (
        'input { name: "T" data_type: TYPE_INT32 dims: [ -1 ] }'
        'input { name: "M" data_type: TYPE_FP32 dims: [ -1 ] }'
        'input { name: "S" data_type: TYPE_INT32 dims: [ -1 ] }'
        'output { name: "H" data_type: TYPE_FP16 dims: [ -1, 8 ] }'
    )
    declared = {
        "task": ["embed"],
        "inputs": {"ids": "T", "mask": "M", "types": "S"},
        "output": "H",
        "pooling": "max",
        "normalize": False,
        "dimensions": [8, 4],
        "prompts": {"query": "q: "},
        "default_prompt": "query",
        "max_tokens": 64,
        "tokenizer": "tokenizer/tokenizer.json",
        "pad_id": 3,
    }
    padding = "T[0]=3 M[0] S[0] -> H[0]: 16 64"
    texts = {"text.json": json.dumps(declared).encode(), "tokenizer/tokenizer.json": b"{}"}
    mapping = read_mapping(configured(tensors, padding=padding), texts)
    assert mapping == TextMapping(
        frozenset({"embed"}),
        TextInput("T", "INT32"),
        TextInput("M", "FP32"),
        TextInput("S", "INT32"),
        output="H",
        pooling="max",
        dimensions=(4, 8),
        matryoshka=True,
        prompts={"query": "q: "},
        default_prompt="query",
        max_tokens=64,
        tokenizer="tokenizer/tokenizer.json",
        pad_id=3,
        batches_lengths=True,
    )
    parameter = json.dumps(declared)
    del texts["text.json"]
    assert read_mapping(configured(tensors, padding=padding, text=parameter), texts) == mapping


def test_dimensions_may_be_any() -> None:
    assert read(IDS + HIDDEN, text={"dimensions": True}).matryoshka
    assert not read(IDS + HIDDEN, text={}).matryoshka
    facts = {"is_matryoshka": True, "matryoshka_dimensions": [2, 4]}
    mapping = read(IDS + HIDDEN, config=facts)
    assert (mapping.matryoshka, mapping.dimensions) == (True, (2, 4))


def test_a_fixed_number_of_tokens_is_the_limit() -> None:
    mapping = read((IDS + HIDDEN).replace("[ -1", "[ 16"), config={"max_position_embeddings": 512})
    assert (mapping.fixed_tokens, mapping.max_tokens) == (16, 16)


@pytest.mark.parametrize(
    ("ids", "output", "rank"),
    [("-1, -1", "-1, -1, 8", 2), ("1, -1", "1, -1, 8", 2), ("-1", "-1, 8", 1)],
)
def test_a_model_without_batches_has_its_own_ranks(ids: str, output: str, rank: int) -> None:
    tensors = IDS.replace("[ -1 ]", f"[ {ids} ]") + HIDDEN.replace("[ -1, 8 ]", f"[ {output} ]")
    mapping = read_mapping(configured(tensors, 0), model_files())
    assert mapping is not None
    assert mapping.ids == TextInput("input_ids", "INT64", rank)
    assert mapping.pooling == "mean"


def test_ragged_inputs_batch_lengths() -> None:
    assert not read(IDS + HIDDEN).batches_lengths
    assert read(IDS.replace("[ -1 ]", "[ -1 ] allow_ragged_batch: true") + HIDDEN).batches_lengths


def test_the_padding_token_may_be_among_the_added_ones() -> None:
    tokenizer = {
        "pad_token": "<pad>",
        "added_tokens_decoder": {"0": {"content": "<s>"}, "1": {"content": "<pad>"}},
    }
    assert read(IDS + HIDDEN, tokenizer_config=tokenizer).pad_id == 1
    assert read(IDS + HIDDEN, config={"pad_token_id": -1}).pad_id == 0


def test_splade_is_known_by_its_module_or_declared() -> None:
    tokens = 'output { name: "logits" data_type: TYPE_FP32 dims: [ -1, 40 ] }'
    modules = [{"type": "sentence_transformers.sparse_encoder.models.SpladePooling", "path": "1_S"}]
    masked = {"architectures": ["BertForMaskedLM"]}
    guessed = read(IDS + tokens, modules=modules, config=masked)
    declared = read(IDS + tokens, text={"task": "embed_sparse"}, config=masked)
    for mapping in (guessed, declared):
        assert (set(mapping.tasks), mapping.pooling) == ({"embed_sparse"}, "splade")
        assert (mapping.output, mapping.normalizes) == ("logits", False)
    assert read_mapping(configured(IDS + tokens), model_files(config=masked)) is None
    pooled = 'output { name: "weights" data_type: TYPE_FP32 dims: [ 40 ] }'
    assert read(IDS + pooled, text={"task": "embed_sparse"}).pooling == ""


@pytest.mark.parametrize(
    ("tensors", "documents", "error"),
    [
        (IDS, {"text": {"task": ["embed_sparse", "classify"]}}, "task: embed_sparse excludes"),
        (IDS, {"text": {"task": "embed_sparse", "pooling": "max"}}, "pooling: only models that"),
        (
            IDS,
            {
                "modules": [{"type": "x.SpladePooling", "path": "1_SpladePooling"}],
                "1_SpladePooling__config": {"pooling_strategy": "sum"},
            },
            "pooling_strategy: expected max",
        ),
        (
            'input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }',
            {"text": {"task": "embed_sparse"}},
            "output: output 'logits' has one vector for each token",
        ),
    ],
)
def test_other_sparse_vectors_are_refused(
    tensors: str, documents: dict[str, Any], error: str
) -> None:
    logits = 'output { name: "logits" data_type: TYPE_FP32 dims: [ -1, 40 ] }'
    if "classify" in str(documents):
        logits = 'output { name: "logits" data_type: TYPE_FP32 dims: [ 40 ] }'
    with pytest.raises(InvalidArgument, match=error):
        read(tensors + logits, **documents)


@pytest.mark.parametrize(
    ("declared", "error"),
    [
        ([], "text.json: expected an object"),
        ({"poling": "mean"}, "text.json: unknown key 'poling'; known: task, inputs, "),
        ({"task": "sing"}, "text.json: task: expected one of embed, embed_sparse, "),
        ({"task": 1}, "text.json: task: expected a list of strings"),
        ({"inputs": {"id": "x"}}, "text.json: inputs: unknown key 'id'; known: ids, "),
        ({"inputs": {"ids": "x"}}, "text.json: inputs: ids: the model has no input 'x'"),
        (
            {"inputs": {"text": "input_ids"}},
            "text.json: inputs: text: input 'input_ids' is of type INT64, expected BYTES",
        ),
        (
            {"inputs": {"ids": "input_ids", "text": "input_ids"}},
            "text.json: inputs: text: a model takes either text, or token ids with their mask",
        ),
        ({"inputs": {"mask": "input_ids"}}, "text.json: inputs: an input is named twice"),
        ({"output": "y"}, "text.json: output: the model has no output 'y'"),
        ({"task": "embed", "output": "y"}, "text.json: output: the model has no output 'y'"),
        ({"pooling": "sum"}, "text.json: pooling: expected one of mean, cls, last, max"),
        ({"normalize": 1}, "text.json: normalize: expected true or false"),
        ({"dimensions": [9]}, "text.json: dimensions: expected lengths from 1 to that of"),
        ({"dimensions": [True]}, "text.json: dimensions: expected a list of whole numbers fr"),
        ({"prompts": {"query": 1}}, "text.json: prompts: query: expected a string"),
        ({"prompts": {"query": "\ud800"}}, "text.json: prompts: query: expected a string"),
        ({"default_prompt": "query"}, "text.json: default_prompt: there is no prompt of this"),
        ({"labels": ["a"]}, "text.json: output: say which output it is"),
        ({"task": "embed", "labels": ["a"]}, "text.json: labels: only models that classify have"),
        ({"activation": "relu", "task": "embed"}, "text.json: activation: expected one of softmax"),
        ({"max_tokens": -1}, "text.json: max_tokens: expected a whole number from 0 to"),
        ({"tokenizer": "t"}, "text.json: tokenizer: the model's directory has no file 't'"),
        ({"generation": {}, "task": "embed"}, "text.json: generation: the model does not have"),
        (
            {"decisions": [], "output": "last_hidden_state"},
            "text.json: decisions: expected an object",
        ),
    ],
)
def test_what_is_wrong_in_a_declaration_is_named(declared: object, error: str) -> None:
    # Two outputs, so that none is the only one.
    tensors = f'{IDS}{HIDDEN} output {{ name: "extra" data_type: TYPE_INT32 dims: [ 1 ] }}'
    with pytest.raises(InvalidArgument) as refused:
        read(tensors, text=declared)
    assert refused.value.message.startswith(error)


@pytest.mark.parametrize(
    ("declared", "error"),
    [
        ({"labels": ["a", "b"]}, "text.json: labels: 2, but output 'logits' has 3 values"),
        ({"task": "rank"}, "text.json: labels: a model that ranks has one score for each row"),
        ({"pooling": "mean"}, "text.json: output: say which output it is"),
        ({"task": "embed", "output": "logits", "pooling": "cls"}, "text.json: pooling: output 'lo"),
        ({"task": "classify", "normalize": True}, "text.json: normalize: only models that embed"),
        ({"task": "classify", "output": "extra"}, "text.json: output: output 'extra' is of type "),
        ({"task": "classify", "output": "last_hidden_state"}, "text.json: output: output 'last_"),
    ],
)
def test_what_is_wrong_in_a_classifiers_declaration(declared: object, error: str) -> None:
    extra = 'output { name: "extra" data_type: TYPE_INT32 dims: [ 3 ] }'
    tensors = IDS + LOGITS + extra
    if "last_hidden_state" in str(declared):
        tensors += HIDDEN
    with pytest.raises(InvalidArgument) as refused:
        read(tensors, text=declared)
    assert refused.value.message.startswith(error)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("text.json", b"\xff", "text.json: not UTF-8"),
        ("text.json", b"{", "text.json: not JSON: "),
        ("text.json", b"[" * 100_000, "text.json: JSON with too long numbers or too deep lists"),
        ("text.json", b"9" * 5_000, "text.json: JSON with too long numbers or too deep lists"),
        ("config.json", b'{"architectures": "Bert"}', "config.json: architectures: expected a li"),
        ("config.json", b'{"max_position_embeddings": 1e9}', "config.json: max_position_embeddi"),
        ("modules.json", b"{}", "modules.json: expected a list"),
        ("modules.json", b"[1]", "modules.json: 0: expected an object"),
        ("modules.json", b'[{"type": "a.Dense"}]', "modules.json: 0: type: module Dense cannot"),
        ("modules.json", b'[{"type": "Pooling", "path": "x"}]', "modules.json: no file 'x/config"),
    ],
)
def test_damaged_files_are_named(name: str, content: bytes, error: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_mapping(configured(IDS + HIDDEN), {**model_files(), name: content})
    assert refused.value.message.startswith(error)


@pytest.mark.parametrize(
    ("tensors", "documents", "error"),
    [
        (
            IDS + LOGITS,
            {"config": {**CLASSIFIER, "id2label": {"a": "b"}}},
            "config.json: id2label: expected the keys 0, 1, 2 and so on",
        ),
        (
            IDS + LOGITS.replace("[ 3 ]", "[ -1 ]"),
            {"config": {**CLASSIFIER, "num_labels": 0}},
            "config.json: num_labels: expected 1 to 100000",
        ),
        (
            IDS + SCORE,
            {
                "config": {
                    **CLASSIFIER,
                    "num_labels": 1,
                    "sbert_ce_default_activation_function": "x",
                }
            },
            "config.json: activation_fn: expected Sigmoid, Identity or Softmax",
        ),
        (
            IDS + LOGITS,
            {"config": {"id2label": {"0": "a", "1": "b", "2": "c"}, "problem_type": "x"}},
            "config.json: problem_type: expected one of single_label_classification, ",
        ),
        (
            IDS + SCORE,
            {"text": {"activation": "softmax"}},
            "text.json: activation: softmax of one value is always 1",
        ),
        (
            IDS + HIDDEN,
            {
                "modules": [{"type": POOLING, "path": "1_Pooling"}],
                "1_Pooling__config": {"include_prompt": False},
                "config_sentence_transformers": {"prompts": {"query": "q"}},
            },
            "1_Pooling/config.json: include_prompt: prompts cannot be left out of the pooling",
        ),
        (
            HIDDEN,
            {"text": {"task": "embed"}},
            "text.json: inputs: ids: say which input takes token ids, or 'text' for text",
        ),
        (
            IDS.replace("[ -1 ]", "[ 4 ]", 1) + HIDDEN,
            {},
            "text.json: inputs: the inputs have different numbers of tokens",
        ),
        (
            IDS.replace("[ -1 ]", "[ 2, -1 ]") + HIDDEN,
            {},
            "text.json: inputs: ids: the dims of input 'input_ids' are not those of one text",
        ),
        (
            TEXT.replace("[ 1 ]", "[ 2 ]"),
            {"text": {"task": "embed"}},
            "text.json: inputs: text: input 'TEXT' takes 2 texts in each row",
        ),
        (
            TEXT.replace("[ 8 ]", "[ -1, 8 ]"),
            {"text": {"task": "embed"}},
            "text.json: output: output 'VECTOR' has one vector for each token",
        ),
        (IDS + HIDDEN, {"text": {"task": 5}}, "text.json: task: expected a list of strings"),
        (IDS + HIDDEN, {"text": {"task": [5]}}, "text.json: task: expected a list of strings"),
        (IDS + HIDDEN, {"text": {"dimensions": 5}}, "text.json: dimensions: expected a list of"),
    ],
)
def test_what_cannot_be_is_refused(tensors: str, documents: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read(tensors, **documents)
    assert refused.value.message.startswith(error)


def test_a_model_that_needs_more_than_text_is_refused() -> None:
    tensors = f'{IDS} input {{ name: "pixels" data_type: TYPE_FP32 dims: [ 3 ] }} {HIDDEN}'
    with pytest.raises(InvalidArgument, match=r"the model needs input 'pixels' as well"):
        read(tensors, text={"task": "embed"})


@pytest.mark.parametrize(
    ("tensors", "parameters", "names", "may_be"),
    [
        (TEXT, {}, [], False),
        (TEXT, {}, ["config.json"], False),
        (TEXT, {}, ["tokenizer.json"], True),
        (TEXT, {"text": "{}"}, [], True),
        (VLLM, {}, [], True),
    ],
)
def test_lists_have_models_that_may_take_text(
    tensors: str, parameters: dict[str, str], names: list[str], may_be: bool
) -> None:
    assert may_be_text_model(configured(tensors, 8, **parameters), names) is may_be


def test_a_mapping_is_declared_once() -> None:
    with pytest.raises(InvalidArgument, match=r"^parameter 'text': the model has a text.json"):
        read_mapping(configured(IDS + HIDDEN, text="{}"), model_files(text={}))


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["input_ids", "attention_mask", "TEXT", "logits", "VECTOR", "mean", "embed"]),
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["ids", "text", "0", "1", "type", "path", "query", "content"]), inner
        ),
    ),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    [
        *("task", "inputs", "output", "pooling", "normalize", "dimensions", "prompts", "labels"),
        *("activation", "max_tokens", "tokenizer", "pad_id", "decisions", "generation"),
        *("architectures", "id2label", "problem_type", "max_position_embeddings", "pad_token_id"),
        *("model_max_length", "pooling_mode", "pooling_mode_cls_token", "limits", "num_labels"),
        *("added_tokens_decoder", "pad_token", "default_prompt_name", "sentence_transformers"),
        *("model_type", "is_matryoshka", "matryoshka_dimensions", "max_seq_length"),
    ]
)
_DOCUMENTS = st.one_of(
    st.dictionaries(_KEYS, _JSON, max_size=6), st.lists(_JSON, max_size=3), _JSON
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([IDS + HIDDEN, IDS + LOGITS, IDS + TYPES + SCORE, TEXT, VLLM, IDS, HIDDEN]),
    st.integers(0, 2),
    st.dictionaries(
        st.sampled_from(files.ALL),
        st.one_of(st.binary(max_size=8), _DOCUMENTS.map(lambda value: json.dumps(value).encode())),
        max_size=5,
    ),
)
def test_any_files_give_a_mapping_or_an_error(
    tensors: str, max_batch_size: int, contents: dict[str, bytes]
) -> None:
    mapping = None
    with suppress(InvalidArgument):
        mapping = read_mapping(configured(tensors, max_batch_size), contents)
    assert mapping is None or (mapping.tasks and (mapping.ids or mapping.text))
