"""`nereid perf` with calls of OpenAI's API: texts, tokens and the first token."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid_perf.output.result import MeasuredServer
from nereid_perf.output.result_file import read_result
from tests.support.mesh.mesh import Mesh, running
from tests.support.models import generators, text_models

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    repository = tmp_path_factory.mktemp("models")
    text_models.export(repository / "embedder")
    text_models.export(repository / "ranker", labels=("relevance",))
    generators.python_generator(repository / "chat", "vllm")
    with running(repository, tmp_path_factory.mktemp("mesh") / "log", "--openai-api") as started:
        yield started


def _measured(mesh: Mesh, path: Path, *flags: str) -> MeasuredServer:
    command = [sys.executable, "-c", "from nereid.cli import main; main()", "perf", *flags]
    command += ["-u", mesh.http, "--request-count=20", "--json", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert path.exists(), ended.stderr
    (server,) = read_result(path).servers
    assert dict(server.measurements[0].failures) == {}
    assert server.measurements[0].requests == 20
    return server


@pytest.mark.parametrize(("endpoint", "model"), [("embeddings", "embedder"), ("rerank", "ranker")])
def test_texts_and_their_tokens(mesh: Mesh, endpoint: str, model: str, tmp_path: Path) -> None:
    flags = f"--endpoint={endpoint}", f"-m={model}", "-b=4", "--string-length=20"
    server = _measured(mesh, tmp_path / "result.json", *flags)
    assert server.batch_size == 4
    # Each text has several words, and special tokens.
    assert server.measurements[0].input_tokens > 20 * 4 * 4
    assert server.measurements[0].output_tokens == 0


def test_the_first_token_of_a_stream(mesh: Mesh, tmp_path: Path) -> None:
    flags = ["--service-kind=openai", "--endpoint=v1/chat/completions", "-m=chat", "--streaming"]
    flags += ["--string-data=hello", "--request-parameter=max_tokens:4:int"]
    (measured,) = _measured(mesh, tmp_path / "result.json", *flags).measurements
    # The model counts 77 tokens in any prompt.
    assert (measured.input_tokens, measured.output_tokens) == (20 * 77, 20 * 4)
    assert measured.responses == 20 * 4
    assert measured.latencies.first.get_total_count() == 20
