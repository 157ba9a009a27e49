"""Models that generate known texts, behind each kind of tensors that generators have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "{% endfor %}{% if tools %}<tools>{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
END = "<eos>"
_STRING = "data_type: TYPE_STRING dims: [ 1 ]"
_SQUARE_STRING = "data_type: TYPE_STRING dims: [ 1, 1 ]"
_SQUARE_BOOL = "data_type: TYPE_BOOL dims: [ 1, 1 ]"

# It says again what the last message of the user said, character by character. JSON with the key
# "say" gives the text, "parts" its parts, "pause_s" the time between them, "fail_after" a number of
# parts before an error. "report" makes it say what it got.
_MODEL = """
import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.running = 0
        self.lock = threading.Lock()

    def execute(self, requests):
        for request in requests:
            inputs = {}
            for tensor in request.inputs():
                values = tensor.as_numpy().reshape(-1).tolist()
                values = [v.decode() if isinstance(v, bytes) else v for v in values]
                inputs[tensor.name()] = values
            sender = request.get_response_sender()
            parameters = json.loads(request.parameters() or "{}")
            threading.Thread(target=self.write, args=(sender, inputs, parameters)).start()

    def write(self, *arguments):
        with self.lock:
            self.running += 1
        try:
            self.write_text(*arguments)
        finally:
            with self.lock:
                self.running -= 1

    def write_text(self, sender, inputs, parameters):
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        prompt = inputs.get("text_input", inputs.get("TEXT", inputs.get("input_ids")))
        if "input_ids" in inputs:
            parts = [[token] for token in prompt] + [[256]]
            plan = {}
        else:
            asked = prompt[0].rpartition("<user>")[2]
            for end in ("<assistant>", "<tools>"):
                asked = asked.rpartition(end)[0] if end in asked else asked
            plan = json.loads(asked) if asked.startswith('{"') else {}
            text = plan.get("say", asked)
            if plan.get("report"):
                got = {"inputs": inputs, "parameters": parameters, "running": self.running}
                text = json.dumps(got).encode().hex()
            parts = plan.get("parts") or list(text)
            limit = inputs.get("max_tokens", [None])[0]
            if limit is None:
                limit = json.loads(inputs.get("sampling_parameters", ["{}"])[0]).get("max_tokens")
            if not plan.get("report"):
                parts = parts[:limit]
        for number, part in enumerate(parts):
            if sender.is_cancelled():
                break
            if number == plan.get("fail_after"):
                error = pb_utils.TritonError("asked to fail")
                sender.send(pb_utils.InferenceResponse(error=error), final)
                return
            sender.send(pb_utils.InferenceResponse(self.tensors(inputs, part)))
            time.sleep(plan.get("pause_s", 0))
        sender.send(flags=final)

    def tensors(self, inputs, part):
        if "input_ids" in inputs:
            return [pb_utils.Tensor("output_ids", np.array(part, np.int32))]
        outputs = {output["name"]: output for output in self.config["output"]}
        name = self.config["output"][0]["name"]
        value = part.encode() if isinstance(part, str) else bytes(part)
        shape = [1] * len(outputs[name]["dims"])
        tensors = [pb_utils.Tensor(name, np.array([value], np.object_).reshape(shape))]
        for count, number in (("output", 1), ("input", 77)):
            if inputs.get(f"return_num_{count}_tokens"):
                output = outputs[f"num_{count}_tokens"]
                dtype = output["data_type"].removeprefix("TYPE_").lower()
                value = np.full([1] * len(output["dims"]), number, dtype)
                tensors.append(pb_utils.Tensor(output["name"], value))
        if inputs.get("return_logprobs"):
            value = json.dumps([{"5": {"logprob": -0.5, "rank": 1, "decoded_token": part}}])
            tensors.append(pb_utils.Tensor("logprobs", np.array([value.encode()], np.object_)))
        return tensors
"""

CONFIGS = {
    # Triton's backend for vLLM.
    "vllm": f"""
        input [ {{ name: "text_input" {_STRING} }},
          {{ name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }},
          {{ name: "sampling_parameters" {_STRING} optional: true }},
          {{ name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true }},
          {{ name: "return_finish_reason" data_type: TYPE_BOOL dims: [ 1 ] optional: true }},
          {{ name: "return_logprobs" data_type: TYPE_BOOL dims: [ 1 ] optional: true }},
          {{ name: "return_num_input_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true }},
          {{ name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true }} ]
        output [ {{ name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }},
          {{ name: "finish_reason" data_type: TYPE_STRING dims: [ -1 ] }},
          {{ name: "logprobs" data_type: TYPE_STRING dims: [ -1 ] }},
          {{ name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }},
          {{ name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ -1 ] }} ]""",
    # An ensemble of Triton's backend for TensorRT-LLM.
    "tensorrt_llm": f"""
        input [ {{ name: "text_input" {_STRING} }},
          {{ name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }},
          {{ name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }},
          {{ name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] optional: true }},
          {{ name: "random_seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true }},
          {{ name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }} ]
        output [ {{ name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }} ]""",
    # The mock models of the tests of Triton's OpenAI front end.
    "mock_llm": """
        input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1, 1 ] },
          { name: "stream" data_type: TYPE_BOOL dims: [ 1, 1 ] },
          { name: "return_logprobs" data_type: TYPE_BOOL dims: [ 1, 1 ] optional: true } ]
        output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1, -1 ] } ]""",
    "tool_stream_py": f"""
        input [ {{ name: "text_input" {_SQUARE_STRING} }},
          {{ name: "stream" {_SQUARE_BOOL} }},
          {{ name: "max_tokens" data_type: TYPE_INT32 dims: [ 1, 1 ] optional: true }},
          {{ name: "return_num_input_tokens" {_SQUARE_BOOL} optional: true }},
          {{ name: "return_num_output_tokens" {_SQUARE_BOOL} optional: true }},
          {{ name: "stop_words" data_type: TYPE_STRING dims: [ 1, -1 ] optional: true }},
          {{ name: "temperature" data_type: TYPE_FP32 dims: [ 1, 1 ] optional: true }},
          {{ name: "top_p" data_type: TYPE_FP32 dims: [ 1, 1 ] optional: true }},
          {{ name: "frequency_penalty" data_type: TYPE_FP32 dims: [ 1, 1 ] optional: true }},
          {{ name: "presence_penalty" data_type: TYPE_FP32 dims: [ 1, 1 ] optional: true }},
          {{ name: "seed" data_type: TYPE_UINT64 dims: [ 1, 1 ] optional: true }},
          {{ name: "guided_decoding_guide_type" {_SQUARE_STRING} optional: true }},
          {{ name: "guided_decoding_guide" {_SQUARE_STRING} optional: true }} ]
        output [ {{ name: "text_output" data_type: TYPE_STRING dims: [ 1, -1 ] }},
          {{ name: "num_input_tokens" data_type: TYPE_INT32 dims: [ 1, 1 ] }},
          {{ name: "num_output_tokens" data_type: TYPE_INT32 dims: [ 1, 1 ] }} ]""",
    # Names of its own.
    "own": f"""
        input [ {{ name: "TEXT" {_STRING} }} ]
        output [ {{ name: "SAID" {_STRING} }} ]""",
    "ids": """
        input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
        output [ { name: "output_ids" data_type: TYPE_INT32 dims: [ -1 ] } ]""",
}


def tokenizer() -> Tokenizer:
    """A token for each byte, and one that ends a text."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), END]
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END])
    return made


def _write_texts(folder: Path, template: str, with_tokenizer: bool, text: dict[str, Any]) -> None:
    facts = {"eos_token": END, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    if with_tokenizer:
        tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "text.json").write_text(json.dumps({"task": "generate", **text}))


def python_generator(
    folder: Path,
    kind: str,
    *,
    template: str = TEMPLATE,
    decoupled: bool = True,
    with_tokenizer: bool = True,
    **text: Any,
) -> Path:
    """Write a generator's folder. kind: a key of CONFIGS. text: members of text.json.

    template: that of chats; without one, the folder has no files of texts.
    """
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(_MODEL)
    transactions = "model_transaction_policy { decoupled: true }" if decoupled else ""
    config = f'backend: "python"\nmax_batch_size: 0\n{transactions}\n{CONFIGS[kind]}\n'
    (folder / "config.pbtxt").write_text(config)
    if template:
        _write_texts(folder, template, with_tokenizer, text)
    return folder


def logits_generator(folder: Path, *, seed: int = 1, max_tokens: int = 256) -> Path:
    """Write the folder of an ONNX model that gives logits by the last token alone."""
    (folder / "1").mkdir(parents=True)
    size = tokenizer().get_vocab_size()
    table = np.random.default_rng(seed).normal(size=(size, size)).astype(np.float32)
    # It never ends a text by itself, and says letters.
    table[:, tokenizer().token_to_id(END)] -= 20
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["logits"])],
        "bigrams",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "tokens", size])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (folder / "1" / "model.onnx").write_bytes(model.SerializeToString())
    _write_texts(folder, TEMPLATE, True, {"max_tokens": max_tokens})
    return folder


def logits_of(folder: Path, token: int) -> np.ndarray[Any, Any]:
    """The logits behind a token."""
    model = onnx.load(folder / "1" / "model.onnx")
    logits: np.ndarray[Any, Any] = numpy_helper.to_array(model.graph.initializer[0])[token]
    return logits
