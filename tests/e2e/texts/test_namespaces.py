"""Rights by model of OpenAI's API where repositories are namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from nereid_gateway.guards.auth.api_key import make_key
from tests.support.gateway.auth_config import key_entry
from tests.support.mesh.mesh import Mesh, running
from tests.support.models import text_models

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mesh, Path, str]]:
    """A mesh of two repositories, the second one, and a key for the model of the first."""
    root = tmp_path_factory.mktemp("namespaces")
    first, second = root / "first", root / "second"
    text_models.export(first / "ours")
    text_models.export(second / "theirs")
    key = make_key()
    config = root / "auth.toml"
    entry = key_entry("one", key, "inference", more='models = ["ours"]')
    config.write_text('[anonymous]\nrights = ["health", "model-repository"]\n' + entry)
    flags = "--openai-api", "--model-namespacing=true", f"--model-repository={second}"
    with running(first, root / "log", *flags, f"--auth-config={config}") as mesh:
        yield mesh, second, key


def test_a_qualified_name_is_checked_as_a_whole(site: tuple[Mesh, Path, str]) -> None:
    mesh, second, key = site
    client = openai.OpenAI(base_url=f"http://{mesh.http}/v1", api_key=key)
    for model in ("ours", "ours/1"):
        client.embeddings.create(model=model, input="the cat")
    for model in ("theirs", f"{second}::theirs", f"{second}::theirs/1", f"ours/{second}::theirs"):
        with pytest.raises(openai.PermissionDeniedError):
            client.embeddings.create(model=model, input="the cat")
    client.close()
