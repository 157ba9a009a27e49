"""Small models that decide: packages of NoulXP, and classifiers of pairs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from noulxp import conformance
from noulxp.package import open_package, sha256_file
from noulxp.profiles.encoder_markers import EncoderMarkersRuntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from nereid.pb import nereid_pb2 as pb
from nereid.text import read_mapping
from nereid_gateway.extras.openai.texts.text_models import TextModel
from tests.support.models.onnx_models import config

PACKAGE = """
input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "marker_positions" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "marker_mask" data_type: TYPE_BOOL dims: [ -1 ] }
input { name: "question_type" data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [ ] } }
output { name: "option_logits" data_type: TYPE_FP32 dims: [ -1 ] }
"""
PAIRS = """
input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "logits" data_type: TYPE_FP32 dims: [ 1 ] }
"""
REQUESTS: list[dict[str, Any]] = conformance.read_jsonl(conformance.DEFAULT_REQUESTS)
SPECIAL = {"pad": "<pad>", "cls": "<cls>", "sep": "<sep>", "marker": "<option>"}
_SIZE = 16
TEMPLATE: dict[str, Any] = {
    "standard": "noulxp/0.1",
    "profile": "encoder-markers",
    "special_tokens": SPECIAL,
    "question_type_ids": {"choice": 0, "score": 1, "noul": 2},
    "layout": [
        {"token": "cls"},
        {"part": "head"},
        {"part": "options"},
        {"token": "sep"},
        {"part": "state"},
        {"token": "sep"},
    ],
    "head": "{type} question: {instructions}",
    "options": {
        "prefix": " ",
        "choice": {"described": "{name}: {description}", "bare": "{name}"},
        "score": {"described": "level {index}: {description}"},
        "noul": {
            "false": {"described": "false: {description}", "bare": "false: no"},
            "true": {"described": "true: {description}", "bare": "true: yes"},
        },
    },
    "budgets": {"total": 512, "head": 192, "option": 24},
    "truncation": "truncate-state",
}
CALIBRATION = {
    "standard": "noulxp/0.1",
    "temperature": {"choice": 1.3, "score": 0.8, "noul": 1.7},
    "by_option_count": [{"type": "choice", "min": 6, "max": None, "temperature": 2.0}],
}
MANIFEST: dict[str, Any] = {
    "standard": "noulxp/0.1",
    "name": "nereid/toy",
    "profile": "encoder-markers",
    "tokenizer": {"path": "tokenizer.json"},
    "template": {"path": "template.json"},
    "calibration": {"path": "calibration.json"},
    "answers": {"confidence": {"choice": "entropy", "score": "typesafe-ordinal"}},
    "limits": {"max_tokens": 512, "max_options": 64, "max_levels": 32},
}


@cache
def byte_tokenizer() -> Tokenizer:
    """A byte-level tokenizer that was trained on the requests of NoulXP, in eleven languages."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[*SPECIAL.values()],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator((str(each["request"]) for each in REQUESTS), trainer)
    return made


def _marker_graph(vocabulary: int, seed: int) -> onnx.ModelProto:
    """An encoder whose tokens see their neighbours, and the mean of all; a score per marker."""
    random = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)

    def axes(name: str, *values: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    weights = [
        weight("words", vocabulary, _SIZE),
        weight("kinds", 3, _SIZE),
        weight("window", _SIZE, _SIZE, 9),
        weight("mixing", _SIZE, _SIZE),
        weight("head", _SIZE, 1),
        axes("last", 2),
        axes("tokens", 1),
        numpy_helper.from_array(np.array(0.15, np.float32), "scale"),
    ]
    node = helper.make_node
    nodes = [
        node("Gather", ["words", "input_ids"], ["embedded"]),
        node("Cast", ["attention_mask"], ["flat_mask"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["flat_mask", "last"], ["mask"]),
        node("Mul", ["embedded", "mask"], ["masked"]),
        node("ReduceSum", ["masked", "tokens"], ["sums"], keepdims=1),
        node("ReduceSum", ["mask", "tokens"], ["counts"], keepdims=1),
        node("Div", ["sums", "counts"], ["means"]),
        node("MatMul", ["means", "mixing"], ["mixed"]),
        node("Transpose", ["masked"], ["channels"], perm=[0, 2, 1]),
        node("Conv", ["channels", "window"], ["seen"], pads=[4, 4]),
        node("Transpose", ["seen"], ["near"], perm=[0, 2, 1]),
        node("Add", ["near", "mixed"], ["hidden"]),
        node("Unsqueeze", ["marker_positions", "last"], ["places"]),
        node("GatherND", ["hidden", "places"], ["markers"], batch_dims=1),
        node("Gather", ["kinds", "question_type"], ["kind"]),
        node("Unsqueeze", ["kind", "tokens"], ["own_kind"]),
        node("Add", ["markers", "own_kind"], ["sum"]),
        node("Mul", ["sum", "scale"], ["scaled"]),
        node("Tanh", ["scaled"], ["states"]),
        node("MatMul", ["states", "head"], ["scores"]),
        node("Squeeze", ["scores", "last"], ["option_logits"]),
    ]
    kinds = {
        "input_ids": (TensorProto.INT64, ["batch", "tokens"]),
        "attention_mask": (TensorProto.INT64, ["batch", "tokens"]),
        "marker_positions": (TensorProto.INT64, ["batch", "options"]),
        "marker_mask": (TensorProto.BOOL, ["batch", "options"]),
        "question_type": (TensorProto.INT64, ["batch"]),
    }
    graph = helper.make_graph(
        nodes,
        "decisions",
        [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()],
        [helper.make_tensor_value_info("option_logits", TensorProto.FLOAT, ["batch", "options"])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


class _Recorded:
    """The reference runtime, as the code whose answers a conformance file records."""

    provenance = {"runtime": "noulxp"}  # noqa: RUF012

    def __init__(self, runtime: EncoderMarkersRuntime) -> None:
        self._runtime = runtime

    def predict(self, state: Any, questions: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._runtime.predict(state, questions, decimals=None)
        return found


def write_package(folder: Path, *, seed: int = 1, **template: Any) -> Path:
    """Write a package with random weights, and what NoulXP's own runtime answers with them."""
    folder.mkdir(parents=True)
    tokenizer = byte_tokenizer()
    graph = _marker_graph(tokenizer.get_vocab_size(), seed)
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    tokenizer.save(str(folder / "tokenizer.json"))
    described = TEMPLATE | template
    for name, content in (("template", described), ("calibration", CALIBRATION)):
        (folder / f"{name}.json").write_text(json.dumps(content))

    def entry(name: str) -> dict[str, Any]:
        return {"path": name, "sha256": sha256_file(folder / name)}

    weights = {**entry("model.onnx"), "format": "onnx", "opset": 18}
    files = {name: entry(f"{name}.json") for name in ("tokenizer", "template", "calibration")}
    limits = {"max_tokens": described["budgets"]["total"], "max_options": 64}
    manifest = MANIFEST | {"weights": weights, "limits": limits} | files
    (folder / "noulxp.json").write_text(json.dumps(manifest))
    runtime = EncoderMarkersRuntime(open_package(folder), provider="cpu", threads=1)
    try:
        conformance.generate(folder, _Recorded(runtime), REQUESTS, log=lambda _: None)
    finally:
        runtime.close()
    return folder


def cases(folder: Path) -> list[dict[str, Any]]:
    """The cases of a package's conformance file."""
    found: list[dict[str, Any]] = conformance.read_jsonl(folder / conformance.CONFORMANCE_FILE)
    return found


def text_model(tensors: str, files: dict[str, bytes]) -> TextModel:
    """A model with these tensors and files, as a gateway knows it."""
    message = config(tensors)
    message.max_batch_size = 8
    mapping = read_mapping(message, files)
    assert mapping is not None
    return TextModel("m", pb.ModelTextResponse(config=message, files=files), mapping)


def package_files(template: dict[str, Any]) -> dict[str, bytes]:
    """Files of a package that gateways get."""
    documents = {
        "noulxp.json": MANIFEST,
        "template.json": TEMPLATE | template,
        "calibration.json": CALIBRATION,
    }
    files = {name: json.dumps(document).encode() for name, document in documents.items()}
    return {**files, "tokenizer.json": byte_tokenizer().to_str().encode()}


def package_model(template: dict[str, Any]) -> TextModel:
    """A package's model as a gateway knows it."""
    return text_model(PACKAGE, package_files(template))
