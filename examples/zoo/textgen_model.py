"""The model.py of `textgen`: sends each token as soon as there is one, until its client goes."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

# Texts that are written at the same time, and the length of one whose client names none.
MAX_AT_ONCE = 4
USUAL_LENGTH = 64


class TritonPythonModel:
    """execute() only begins a text: the next request need not wait for its end."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"], args["model_version"])
        self._characters = (folder / "characters.txt").read_text()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self._decoder = onnxruntime.InferenceSession(folder / "decoder.onnx", options, providers)
        # What a text begins with: layers, keys and values, one text, heads, no token yet, numbers.
        layers, kinds, _, heads, _, size = self._decoder.get_inputs()[1].shape
        self._nothing = np.zeros((layers, kinds, 1, heads, 0, size), np.float32)
        self._writers = ThreadPoolExecutor(MAX_AT_ONCE)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
            length = pb_utils.get_input_tensor_by_name(request, "max_tokens")
            length = USUAL_LENGTH if length is None else int(length.as_numpy()[0])
            parameters = json.loads(request.parameters() or "{}")
            # A larger model than this one would take its time.
            pause_s = float(parameters.get("milliseconds_per_token", 0)) / 1000
            sender = request.get_response_sender()
            self._writers.submit(self._write, sender, prompt, length, pause_s)

    def finalize(self) -> None:
        self._writers.shutdown(cancel_futures=True)

    def _write(self, sender: Any, prompt: str, length: int, pause_s: float) -> None:
        last = None
        try:
            for token in self._tokens(prompt, length):
                if sender.is_cancelled():
                    break
                text = np.array([self._characters[token].encode()], np.object_)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
                time.sleep(pause_s)
        except Exception as error:
            last = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        sender.send(last, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _tokens(self, prompt: str, length: int) -> Iterator[int]:
        """Generate the likeliest token repeatedly; a run sees the last token and the kept state."""
        unknown = sorted(set(prompt) - set(self._characters))
        if unknown or not prompt:
            raise ValueError(f"the prompt is empty, or has characters not known here: {unknown}")
        tokens = [self._characters.index(each) for each in prompt]
        past = self._nothing
        for _ in range(length):
            inputs = {"input_ids": np.array([tokens], np.int64), "past": past}
            logits, past = self._decoder.run(["logits", "present"], inputs)
            tokens = [int(logits[0].argmax())]
            yield tokens[0]
