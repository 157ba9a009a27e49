"""One mesh for the published tests of servers of texts."""

from collections.abc import Iterator
from contextlib import ExitStack

import anthropic
import httpx
import openai
import pytest

from tests.e2e.texts.published.text_site import LABELS, TEMPLATE, Site
from tests.support.mesh.mesh import running
from tests.support.models import generators, text_models


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    repository = tmp_path_factory.mktemp("published")
    text_models.export(repository / "plain", template=TEMPLATE)
    text_models.export(repository / "cut", task="embed", dimensions=[4, 8])
    text_models.export(
        repository / "prompted", task="embed", prompts={"query": "query : ", "document": "mat "}
    )
    text_models.export(repository / "ranker", labels=("relevance",))
    text_models.export(repository / "labels", labels=LABELS, template=TEMPLATE)
    text_models.export(repository / "sparse", splade=True)
    text_models.export(repository / "decide", labels=("relevance",), task="decide")
    generators.python_generator(repository / "chat", "own", generation={"tool_parser": "hermes"})
    generators.logits_generator(repository / "logits", max_tokens=2048)
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log, "--openai-api") as mesh, ExitStack() as stack:
        url = f"http://127.0.0.1:{mesh.http_port}"
        http = httpx.Client(base_url=url, timeout=60)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        other = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        for each in (http, client, other):
            stack.enter_context(each)
        yield Site(mesh, repository, http, client, other)
