"""The suites of client_suites against a mesh, in an environment that has their clients.

`make text-clients` makes it, and names it in NEREID_TEXT_CLIENTS.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid_gateway.guards.auth.api_key import make_key
from tests.support.gateway.auth_config import key_entry
from tests.support.mesh.mesh import running
from tests.support.models import generators, text_models
from tests.support.models.text_models import BareModel

pytestmark = pytest.mark.slow

SUITES = Path(__file__).parent / "client_suites"
PYTHON = os.environ.get("NEREID_TEXT_CLIENTS", "")
QUERY = "the cat"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A mesh, as the suites are told of it."""
    repository = tmp_path_factory.mktemp("texts")
    text_models.export(repository / "embedder")
    text_models.export(repository / "ranker", labels=("relevance",))
    generators.python_generator(repository / "chat", "vllm")
    key = make_key()
    config = repository.parent / "auth.toml"
    rights = '[anonymous]\nrights = ["health", "model-repository"]\n'
    config.write_text(rights + key_entry("all", key, "all"))
    embedder, ranker = BareModel(repository / "embedder"), BareModel(repository / "ranker")
    texts = text_models.texts(12)
    raw = {text: float(ranker.output(QUERY, text)[0]) for text in texts}
    scores = {text: 1 / (1 + math.exp(-score)) for text, score in raw.items()}
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log, "--openai-api", f"--auth-config={config}") as mesh:
        yield {
            "NEREID_TEXTS_URL": f"http://127.0.0.1:{mesh.http_port}/v1",
            "NEREID_TEXTS_KEY": key,
            "NEREID_TEXTS_EMBEDDER": "embedder",
            "NEREID_TEXTS_RANKER": "ranker",
            "NEREID_TEXTS_CHAT": "chat",
            # LiteLLM would ask another host.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "NEREID_TEXTS_EXPECTED": json.dumps(
                {text: embedder.vector(text).tolist() for text in texts}
            ),
            "NEREID_TEXTS_QUERY": QUERY,
            "NEREID_TEXTS_SCORES": json.dumps(scores),
        }


@pytest.mark.parametrize("name", sorted(path.name for path in SUITES.glob("suite_*.py")))
def test_suite(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    if not PYTHON:
        pytest.skip("NEREID_TEXT_CLIENTS names no environment of clients: make text-clients")
    options = ["-q", "-c", os.devnull, "--confcutdir", str(SUITES), "-p", "no:cacheprovider"]
    # The project's other plugins would disturb what these clients bring along.
    # These clients keep connections, also from one test to the next.
    options += ["-o", "asyncio_default_test_loop_scope=session"]
    options += ["-o", "asyncio_mode=auto", "--import-mode=prepend", "-W", "ignore"]
    done = subprocess.run(
        [PYTHON, "-m", "pytest", *options, str(SUITES / name)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}{done.stderr[-2000:]}"
