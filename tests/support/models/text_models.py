"""Small text models, as exports of Hugging Face's lie in a folder, with their tokenizers."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SIZE = 16
MAX_TOKENS = 64
WORDS = ("the", "cat", "sat", "on", "mat", "dog", "rain", "rates", "rose", "query", "passage", ":")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_FLOAT = {"FP16": TensorProto.FLOAT16, "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE}
_INT = {"INT32": TensorProto.INT32, "INT64": TensorProto.INT64}


def tokenizer() -> Tokenizer:
    """WordPiece over letters and a few words, with BERT's special tokens."""
    letters = string.ascii_lowercase + string.digits
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{each}" for each in letters)]
    vocabulary = {piece: number for number, piece in enumerate((*pieces, *WORDS))}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=512))
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


def _graph(
    *,
    labels: int,
    splade: bool,
    floats: str,
    ints: str,
    with_types: bool,
    with_positions: bool,
    batch: bool,
    seed: int,
) -> onnx.ModelProto:
    random = np.random.default_rng(seed)
    count = tokenizer().get_vocab_size()

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)

    weights = [weight("words", count, SIZE), weight("kinds", 2, SIZE), weight("mixing", SIZE, SIZE)]
    weights.append(numpy_helper.from_array(np.array([-1], np.int64), "last"))
    axis = 1 if batch else 0
    weights.append(numpy_helper.from_array(np.array([axis], np.int64), "tokens"))
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["embedded"]),
        helper.make_node("Cast", ["attention_mask"], ["flat_mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["flat_mask", "last"], ["mask"]),
    ]
    hidden = "embedded"
    if with_types:
        nodes.append(helper.make_node("Gather", ["kinds", "token_type_ids"], ["kind"]))
        nodes.append(helper.make_node("Add", [hidden, "kind"], ["typed"]))
        hidden = "typed"
    if with_positions:
        weights.append(weight("places", MAX_TOKENS, SIZE))
        nodes.append(helper.make_node("Gather", ["places", "position_ids"], ["place"]))
        nodes.append(helper.make_node("Add", [hidden, "place"], ["placed"]))
        hidden = "placed"
    # Each token sees the mean of all, so that a wrong mask changes every vector.
    nodes += [
        helper.make_node("Mul", [hidden, "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "tokens"], ["sums"], keepdims=1),
        helper.make_node("ReduceSum", ["mask", "tokens"], ["counts"], keepdims=1),
        helper.make_node("Div", ["sums", "counts"], ["means"]),
        helper.make_node("MatMul", ["means", "mixing"], ["mixed"]),
        helper.make_node("Add", [hidden, "mixed"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["hidden"]),
    ]
    lead: list[Any] = ["batch"] if batch else []
    dims: list[Any] = [*lead, "tokens", SIZE]
    name, source = "last_hidden_state", "hidden"
    if labels:
        weights.append(weight("head", SIZE, labels))
        nodes += [
            helper.make_node("Mul", ["hidden", "mask"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "tokens"], ["kept_sums"], keepdims=0),
            helper.make_node("MatMul", ["kept_sums", "head"], ["scores"]),
        ]
        name, source, dims = "logits", "scores", [*lead, labels]
    if splade:
        weights.append(weight("head", SIZE, count))
        nodes.append(helper.make_node("MatMul", ["hidden", "head"], ["scores"]))
        name, source, dims = "logits", "scores", [*lead, "tokens", count]
    nodes.append(helper.make_node("Cast", [source], [name], to=_FLOAT[floats]))
    inputs = [*(INPUTS if with_types else INPUTS[:2]), *(["position_ids"] * with_positions)]
    graph = helper.make_graph(
        nodes,
        "text",
        [helper.make_tensor_value_info(each, _INT[ints], [*lead, "tokens"]) for each in inputs],
        [helper.make_tensor_value_info(name, _FLOAT[floats], dims)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def export(
    folder: Path,
    *,
    labels: tuple[str, ...] = (),
    splade: bool = False,
    template: str = "",
    floats: str = "FP32",
    ints: str = "INT64",
    with_types: bool = True,
    with_positions: bool = False,
    batch: bool = True,
    seed: int = 1,
    config: str = "",
    flat: bool = False,
    **text: Any,
) -> Path:
    """Write a model's folder: an encoder, or a classifier with these labels.

    splade: whether it gives logits of the vocabulary for each token. template: of chats. batch:
    whether its tensors have a dimension for batches. config: config.pbtxt, if there is to be one.
    flat: without a folder for the version, as a hub has it. text: text.json, likewise.
    """
    version = folder if flat else folder / "1"
    version.mkdir(parents=True, exist_ok=True)
    graph = _graph(
        labels=len(labels),
        splade=splade,
        floats=floats,
        ints=ints,
        with_types=with_types,
        with_positions=with_positions,
        batch=batch,
        seed=seed,
    )
    (version / "model.onnx").write_bytes(graph.SerializeToString())
    tokenizer().save(str(folder / "tokenizer.json"))
    described: dict[str, Any] = {
        "architectures": ["BertForSequenceClassification" if labels else "BertModel"],
        "max_position_embeddings": MAX_TOKENS,
        "pad_token_id": 0,
    }
    if labels:
        described["id2label"] = {str(index): label for index, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(described))
    if splade:
        modules = [{"type": f"sentence_transformers.{name}"} for name in ("MLM", "SpladePooling")]
        (folder / "modules.json").write_text(json.dumps(modules))
    if template:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    if config:
        (folder / "config.pbtxt").write_text(config)
    if text:
        (folder / "text.json").write_text(json.dumps(text))
    return folder


class BareModel:
    """A model's folder run by onnxruntime alone, one text at a time."""

    def __init__(self, folder: Path) -> None:
        (path,) = folder.glob("**/model.onnx")
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def output(self, text: str, pair: str | None = None) -> np.ndarray[Any, Any]:
        """The model's output for a text, without the dimension of the batch if there is one."""
        encoding = self._tokenizer.encode(text, pair)
        tensors = dict(
            zip(INPUTS, (encoding.ids, encoding.attention_mask, encoding.type_ids), strict=True)
        )
        tensors["position_ids"] = [*range(len(encoding.ids))]
        feeds = {}
        for tensor in self._session.get_inputs():
            dtype = np.int32 if tensor.type == "tensor(int32)" else np.int64
            array = np.array(tensors[tensor.name], dtype)
            feeds[tensor.name] = array[None] if len(tensor.shape) == 2 else array
        is_batch = len(self._session.get_inputs()[0].shape) == 2
        (output,) = self._session.run(None, feeds)
        found: np.ndarray[Any, Any] = output[0] if is_batch else output
        return found.astype(np.float64)

    def vector(self, text: str) -> np.ndarray[Any, Any]:
        """The normalized mean of the vectors of a text's tokens."""
        mean = self.output(text).mean(axis=0)
        vector: np.ndarray[Any, Any] = mean / np.linalg.norm(mean)
        return vector


def texts(count: int, seed: int = 7) -> list[str]:
    """Texts of 1 to 40 words, all different."""
    random = np.random.default_rng(seed)
    return [
        " ".join([f"{number}", *random.choice(WORDS, size=random.integers(1, 40))])
        for number in range(count)
    ]
