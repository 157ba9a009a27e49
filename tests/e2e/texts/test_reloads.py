"""Reloads of a version with another tokenizer while clients of other gateways embed texts."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import openai
import pytest

from tests.support.mesh.mesh import ask, free_port, running, until
from tests.support.mesh.separate_services import ready, service
from tests.support.models import text_models
from tests.support.models.text_models import BareModel

pytestmark = pytest.mark.slow

FILES = ("1/model.onnx", "tokenizer.json")
TEXTS = ["the cat", "rain rose", "dog"]
RELOADS = 6


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


def replace_link(source: Path, link: Path) -> None:
    """Replace all files at once."""
    new = link.with_name(".new")
    new.symlink_to(source)
    new.replace(link)


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """The folders of two models, whose tokenizers differ."""
    made = [text_models.export(tmp_path / f"source-{seed}" / "m", seed=seed) for seed in (1, 2)]
    reorder_words(made[1])
    return made


@contextlib.contextmanager
def embedding(sources: list[Path], ports: Sequence[int]) -> Iterator[_Seen]:
    """Clients, one at each port, that embed texts until the context ends, all of them rightly."""
    right = [np.array([BareModel(source).vector(text) for text in TEXTS]) for source in sources]
    seen = _Seen(right)
    end = threading.Event()
    clients = [threading.Thread(target=seen.embed, args=(port, end)) for port in ports]
    for client in clients:
        client.start()
    try:
        yield seen
    finally:
        end.set()
        for client in clients:
            client.join()
    assert not seen.problems, seen.problems[:5]


def reload_often(sources: list[Path], ports: Sequence[int], reload: Callable[[Path], None]) -> None:
    """Replace a model again and again. reload: gets the folder of the next one."""
    with embedding(sources, ports) as seen:
        # Schedulers read a load's files when they are first asked for.
        until(lambda: len(seen.counts(0)) == len(ports) and all(seen.counts(0)), "first vectors")
        for number in range(1, RELOADS + 1):
            index = number % 2
            reload(sources[index])
            # All clients have used the new files before they are replaced.
            since = seen.counts(index)
            until(lambda: all(map(int.__gt__, seen.counts(index), since)), "new vectors")  # noqa: B023


def load(address: str) -> None:
    status, body = ask(address, "/v2/repository/models/m/load", "POST", b"{}")
    assert status == 200, body


def test_no_vector_is_of_one_tokenizer_and_another_model(
    sources: list[Path], tmp_path: Path
) -> None:
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

        def reload(source: Path) -> None:
            replace_files(source, model)
            load(f"127.0.0.1:{ports[0]}")

        reload_often(sources, (*ports, ports[1]), reload)


def test_reloads_by_one_of_two_schedulers(sources: list[Path], tmp_path: Path) -> None:
    model = text_models.export(tmp_path / "repository" / "m", seed=1)
    flags = ("--openai-api", "--schedulers=2", "--gateways=2", "--model-control-mode=explicit")
    with running(model.parent, tmp_path / "log", *flags, "--load-model=m") as mesh:

        def reload(source: Path) -> None:
            replace_files(source, model)
            load(mesh.http)

        reload_often(sources, [mesh.http_port] * 3, reload)


def test_reloads_of_a_model_that_was_loaded_on_demand(sources: list[Path], tmp_path: Path) -> None:
    link = tmp_path / "repository" / "m"
    link.parent.mkdir()
    link.symlink_to(sources[0])
    flags = ("--openai-api", "--lazy-loading", "--gateways=2", "--model-control-mode=poll")
    with running(link.parent, tmp_path / "log", *flags, "--repository-poll-secs=1") as mesh:
        reload_often(sources, [mesh.http_port] * 3, lambda source: replace_link(source, link))


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
