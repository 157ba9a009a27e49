"""The examples as a newcomer runs them: models made, served, asked by each client and by curl."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from examples.zoo import references
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.mesh.nvidia_clients import connected

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("examples") / "models"
    command = [sys.executable, "examples/make_models.py", "--output", str(models)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    return models


@pytest.fixture(scope="module")
def examples_mesh(models: Path) -> Iterator[Mesh]:
    with running(models, models.parent / "log") as mesh:
        yield mesh


@pytest.fixture
def openai_mesh(models: Path, tmp_path: Path) -> Iterator[Mesh]:
    flags = "--openai-api", "--model-control-mode=explicit", "--load-model=textgen"
    with running(models, tmp_path / "log", *flags) as mesh:
        yield mesh


@pytest.mark.parametrize("script", ["client_http.py", "client_grpc.py", "client_aio.py"])
def test_what_is_served_is_what_was_trained(examples_mesh: Mesh, models: Path, script: str) -> None:
    urls = {
        "client_http.py": [f"--url={examples_mesh.http}"],
        "client_grpc.py": [f"--url={examples_mesh.grpc}"],
        "client_aio.py": [
            f"--http-url={examples_mesh.http}",
            f"--grpc-url={examples_mesh.grpc}",
        ],
    }
    command = [sys.executable, f"examples/{script}", f"--models={models}", *urls[script]]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    # The script exits with 1 at any difference from the offline results.
    assert result.returncode == 0, result.stdout + result.stderr
    accuracies = re.findall(r"accuracy served ([\d.]+), offline ([\d.]+)", result.stdout)
    assert accuracies
    assert all(served == offline and float(served) > 0.9 for served, offline in accuracies)


def run_client(mesh: Mesh, models: Path, script: str, *arguments: str) -> tuple[str, str]:
    """The standard output and error of a client of textgen."""
    url = mesh.http if "http" in script else mesh.grpc
    command = [sys.executable, f"examples/{script}", f"--models={models}", f"--url={url}"]
    result = subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, result.stderr


def tokens_sent(mesh: Mesh) -> tuple[int, int]:
    """How many requests textgen has finished, and how many responses it has sent."""
    stats = json.loads(mesh.get("/v2/models/textgen/stats")[1])["model_stats"][0]
    responses = sum(each["success"]["count"] for each in stats["response_stats"].values())
    return stats["inference_count"], responses


@pytest.mark.parametrize("script", ["stream_http.py", "stream_grpc.py"])
@pytest.mark.parametrize("prompt", ["Once upon a time", "2 + 2 ="])
def test_a_streamed_text_is_what_the_model_generates_offline(
    examples_mesh: Mesh, models: Path, script: str, prompt: str
) -> None:
    before = tokens_sent(examples_mesh)
    text, outcome = run_client(examples_mesh, models, script, f"--prompt={prompt}", "--length=32")
    assert text.startswith(prompt)
    assert "as NumPy says it" in outcome
    assert "NOT" not in outcome
    requests, tokens = tokens_sent(examples_mesh)
    assert (requests - before[0], tokens - before[1]) == (1, 32)


def test_openais_api_gives_the_text_that_the_model_generates_offline(
    openai_mesh: Mesh, models: Path
) -> None:
    expected = np.load(models / "textgen" / "expected" / "expected.npz")
    prompts = expected["prompts"].tolist()
    asked = {"model": "textgen", "prompt": prompts, "max_tokens": 32}
    status, body = openai_mesh.get("/v1/completions", "POST", json.dumps(asked).encode())
    assert status == 200
    document = json.loads(body)
    assert [choice["text"] for choice in document["choices"]] == expected["texts"].tolist()
    assert document["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert document["usage"]["completion_tokens"] == 64
    chat = {"model": "textgen", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    status, body = openai_mesh.get("/v1/chat/completions", "POST", json.dumps(chat).encode())
    document = json.loads(body)
    assert len(document["choices"][0]["message"]["content"]) == 8
    assert document["usage"]["prompt_tokens"] == len("user: Hi\nassistant: ")


@pytest.mark.parametrize("script", ["stream_http.py", "stream_grpc.py"])
def test_a_client_that_disconnects_stops_its_text_within_a_token(
    examples_mesh: Mesh, models: Path, script: str
) -> None:
    requests, tokens = tokens_sent(examples_mesh)
    # It would take three minutes.
    text, _ = run_client(examples_mesh, models, script, "--length=200", "--pause=900", "--stop=2")
    assert len(text) > len("Once upon a time")
    until(
        lambda: "nereid_gateway_pending_requests 0" in examples_mesh.metrics(),
        "the gateway to notice",
    )
    sent = tokens_sent(examples_mesh)[1] - tokens
    until(lambda: tokens_sent(examples_mesh)[0] > requests, "the text to end")
    assert tokens_sent(examples_mesh)[1] - tokens <= sent + 1
    assert sent < 20


def label_of(mesh: Mesh, command: str) -> int:
    """What the mesh takes an image for, by a command of a page."""
    command = command.replace("localhost:8000", mesh.http)
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=30, check=True
    )
    outputs = {output["name"]: output for output in json.loads(result.stdout)["outputs"]}
    (label,) = outputs["label"]["data"]
    return int(label)


def test_the_readmes_first_request_is_the_one_that_serve_prints(examples_mesh: Mesh) -> None:
    readme = (ROOT / "README.md").read_text()
    line = re.search(r"^curl \S*/v2/models/digits/infer -d '[^']*'", readme, re.MULTILINE)
    assert line
    printed = examples_mesh.greeting().rpartition("A first request to try:\n\n")[2].split("\n")[0]
    printed = printed.strip()
    port = examples_mesh.http.rpartition(":")[2]
    assert printed == line[0].replace("localhost:8000", f"localhost:{port}")
    assert label_of(examples_mesh, line[0]) == 4


def test_a_model_of_ones_own_is_served_as_the_quickstart_says(tmp_path: Path, models: Path) -> None:
    (tmp_path / "models").symlink_to(models)
    page = (ROOT / "docs" / "quickstart.md").read_text()
    section = page.partition("## A model of your own")[2]
    prepare = re.findall(r"^(?:mkdir|cp) [^#\n]*", section, re.MULTILINE)
    subprocess.run(["bash", "-ec", "\n".join(prepare)], cwd=tmp_path, timeout=30, check=True)
    request = re.search(r"^curl \S*/v2/models/first/infer -d '[^']*'", section, re.MULTILINE)
    assert request
    with running(tmp_path / "mine", tmp_path / "log") as mesh:
        assert label_of(mesh, request[0]) == 7


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_text_goes_in_and_an_embedding_comes_out(
    examples_mesh: Mesh, models: Path, protocol: str
) -> None:
    expected = references.load(models, "minilm")
    with connected(examples_mesh, protocol) as client:
        response = client.infer("embed", {"text": references.texts_of(expected)})
        embedding = response.as_numpy("embedding")
        np.testing.assert_allclose(embedding, expected["sentence_embedding"], rtol=0, atol=1e-5)
        # One sentence alone, without the padding that others make for it.
        response = client.infer("embed", {"text": references.texts_of(expected)[2:]})
        alone = response.as_numpy("embedding")
        np.testing.assert_allclose(alone, expected["sentence_embedding"][2:], rtol=0, atol=1e-5)


def test_the_quickstarts_sentences_are_embedded(examples_mesh: Mesh) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text()
    line = re.search(r"^curl \S*/v2/models/embed/infer -d '[^']*'", page, re.MULTILINE)
    assert line
    command = line[0].replace("localhost:8000", examples_mesh.http)
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=30, check=True
    )
    (output,) = json.loads(result.stdout)["outputs"]
    assert output["shape"] == [2, 384]


def test_the_greeting_offers_a_request_that_works(examples_mesh: Mesh) -> None:
    text = examples_mesh.greeting()
    assert re.search(r"digits +1 +READY", text)
    line = re.search(r"^  (curl .*/infer -d '[^']*')$", text, re.MULTILINE)
    assert line, text
    assert '""' not in line[1], "a text to try has something to say"
    result = subprocess.run(
        ["bash", "-c", line[1]], capture_output=True, text=True, timeout=30, check=True
    )
    assert "outputs" in json.loads(result.stdout)
