"""NVIDIA's AIPerf against a mesh; NEREID_AIPERF names its command (`make text-clients`)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.mesh.mesh import Mesh, running
from tests.support.models import generators, text_models

AIPERF = os.environ.get("NEREID_AIPERF", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not AIPERF, reason="NEREID_AIPERF names no aiperf: make text-clients"),
]

CALLS = 40
PASSAGES = 3
TOKENS = 8
RANKINGS = (
    f"--rankings-passages-mean={PASSAGES}",
    f"--rankings-passages-prompt-token-mean={TOKENS}",
    f"--rankings-query-prompt-token-mean={TOKENS}",
)
STREAM = ("--streaming", f"--isl={TOKENS}", f"--osl={TOKENS}")
COUNTED = (*STREAM, "--use-server-token-count")


class Site(NamedTuple):
    mesh: Mesh
    repository: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    repository = tmp_path_factory.mktemp("texts")
    text_models.export(repository / "embedder")
    text_models.export(repository / "ranker", labels=("relevance",))
    generators.python_generator(repository / "chat", "vllm")
    generators.logits_generator(repository / "logits")
    for folder in repository.iterdir():
        # Its client reads a model's tokenizer from its folder.
        path = folder / "tokenizer_config.json"
        facts = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**facts, "tokenizer_class": "PreTrainedTokenizerFast"}))
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log, "--openai-api") as mesh:
        yield Site(mesh, repository)


@pytest.mark.parametrize(
    ("endpoint", "model", "flags"),
    [
        ("embeddings", "embedder", (f"--isl={TOKENS}", "--prompt-batch-size=4")),
        ("nim-embeddings", "embedder", (f"--isl={TOKENS}",)),
        ("cohere-rankings", "ranker", RANKINGS),
        ("hf-tei-rankings", "ranker", RANKINGS),
        ("nim-rankings", "ranker", RANKINGS),
        ("chat", "chat", COUNTED),
        ("chat", "logits", COUNTED),
        ("completions", "logits", COUNTED),
        # It reads no usage of a response that ended at its limit of tokens.
        ("responses", "logits", STREAM),
        ("messages", "logits", COUNTED),
    ],
)
def test_no_call_fails(
    endpoint: str, model: str, flags: tuple[str, ...], site: Site, tmp_path: Path
) -> None:
    command = [AIPERF, "profile", "--ui=none", f"--url=http://{site.mesh.http}"]
    command += [f"--model={model}", f"--endpoint-type={endpoint}"]
    command += [f"--tokenizer={site.repository / model}", f"--artifact-dir={tmp_path}"]
    command += [f"--request-count={CALLS}", "--concurrency=4", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-2000:]}"
    report = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == CALLS
    assert not report["error_summary"]
    if "--streaming" in flags:
        assert report["time_to_first_token"]["count"] == CALLS
    if "--use-server-token-count" in flags:
        assert 0 < report["output_sequence_length"]["max"] <= TOKENS
