"""Reloads of a version with another tokenizer while clients of other gateways embed texts."""

import contextlib
import json
import threading
from pathlib import Path

import numpy as np
import openai
import pytest

from tests.support.mesh.mesh import ask, free_port, until
from tests.support.mesh.separate_services import ready, service
from tests.support.models import text_models
from tests.support.models.text_models import BareModel

pytestmark = pytest.mark.slow

FILES = ("1/model.onnx", "tokenizer.json")
TEXTS = ["the cat", "rain rose", "dog"]
RELOADS = 12


def reorder_words(folder: Path) -> None:
    """Give the tokenizer of a model the same words in another order."""
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text())
    vocabulary = described["model"]["vocab"]
    numbers = [vocabulary[word] for word in text_models.WORDS]
    vocabulary |= zip(text_models.WORDS, reversed(numbers), strict=True)
    path.write_text(json.dumps(described))


def replace_files(source: Path, target: Path) -> None:
    for name in FILES:
        copy = target / f".{Path(name).name}"
        copy.write_bytes((source / name).read_bytes())
        copy.replace(target / name)


def test_no_vector_is_of_one_tokenizer_and_another_model(tmp_path: Path) -> None:
    sources = [text_models.export(tmp_path / f"source-{seed}" / "m", seed=seed) for seed in (1, 2)]
    reorder_words(sources[1])
    right = [np.array([BareModel(source).vector(text) for text in TEXTS]) for source in sources]
    model = text_models.export(tmp_path / "repository" / "m", seed=1)
    scheduler = f"127.0.0.1:{free_port()}"
    dial = f"--scheduler-address={scheduler}"
    ports = [free_port(), free_port()]
    with contextlib.ExitStack() as stack:
        flags = [f"--model-repository={model.parent}", "--model-control-mode=explicit"]
        flags += ["--load-model=m", dial]
        stack.enter_context(service("scheduler", tmp_path / "scheduler", *flags))
        stack.enter_context(service("executor", tmp_path / "executor", dial, "--name=e"))
        for port in ports:
            flags = [dial, "--openai-api", f"--http-port={port}"]
            flags += [f"--grpc-port={free_port()}", f"--metrics-port={free_port()}"]
            stack.enter_context(service("gateway", tmp_path / f"gateway-{port}", *flags))
        for port in ports:
            until(lambda port=port: ready(port, "m"), "the model")  # type: ignore[misc]
        seen = _Seen(right)
        end = threading.Event()
        clients = [
            threading.Thread(target=seen.embed, args=(port, end)) for port in (*ports, ports[1])
        ]
        for client in clients:
            client.start()
        try:
            for number in range(1, RELOADS + 1):
                index = number % 2
                replace_files(sources[index], model)
                address = f"127.0.0.1:{ports[0]}"
                status, body = ask(address, "/v2/repository/models/m/load", "POST", b"{}")
                assert status == 200, body
                # All clients have used the new files before they are replaced.
                since = seen.counts(index)
                until(lambda: all(map(int.__gt__, seen.counts(index), since)), "new vectors")  # noqa: B023
        finally:
            end.set()
            for client in clients:
                client.join()
    assert not seen.problems, seen.problems[:5]


class _Seen:
    """The vectors that clients got: of either model, or wrong ones."""

    def __init__(self, right: list[np.ndarray]) -> None:
        self._right = right
        # For each client the calls of each model.
        self._calls: list[list[int]] = []
        self.problems: list[str] = []

    def counts(self, index: int) -> list[int]:
        return [calls[index] for calls in self._calls]

    def embed(self, port: int, end: threading.Event) -> None:
        calls = [0, 0]
        self._calls.append(calls)
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            while not end.is_set():
                try:
                    response = client.embeddings.create(model="m", input=TEXTS)
                except openai.APIError as error:
                    self.problems.append(str(error))
                    continue
                vectors = np.array([each.embedding for each in response.data])
                close = [np.allclose(vectors, each, atol=1e-5) for each in self._right]
                if any(close):
                    calls[close.index(True)] += 1
                else:
                    self.problems.append(f"a wrong vector after {calls} calls")
