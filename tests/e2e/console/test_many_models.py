"""The console of a mesh with many models under load: nothing is lost in it, and nothing grows with
it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.console.browser import opened, violations
from tests.support.console.console_client import console
from tests.support.console.traffic import traffic
from tests.support.mesh.mesh import Mesh, running
from tests.support.models.e2e_models import save_echo
from tests.support.scheduler.ensemble_configs import ensemble_config, save_ensemble

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.browser]

# Every third request fails, as many models fail: the model responds with an error of its own.
_FAILS_A_THIRD = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.requests = 0

    def execute(self, requests):
        return [self.response(request) for request in requests]

    def response(self, request):
        self.requests += 1
        if self.requests % 3 == 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("a negative price"))
        numbers = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numbers)])
"""
_FAILS_TO_LOAD = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("weights.bin has 3 layers, expected 12")

    def execute(self, requests):
        return []
"""
# A page of 50 rows, and what all pages have.
_MAX_SNAPSHOT_BYTES = 200_000
_MAX_PATCH_BYTES = 120_000
_MAX_ELEMENTS = 2_000


def make_models(root: Path, number: int) -> Path:
    for index in range(number - 3):
        save_echo(root, f"echo_{index:04}")
    for name, source in (("zebra", _FAILS_A_THIRD), ("yak", _FAILS_TO_LOAD)):
        save_echo(root, name)
        config = root / name / "config.pbtxt"
        config.write_text(config.read_text().replace('"identity"', '"python"'))
        (root / name / "1" / "model.py").write_text(source)
    steps = [
        ("echo_0001", {"INPUT0": "INPUT0"}, {"OUTPUT0": "between"}),
        ("echo_0002", {"INPUT0": "between"}, {"OUTPUT0": "OUTPUT0"}),
    ]
    tensors = ["INPUT0 FP32 -1"], ["OUTPUT0 FP32 -1"]
    save_ensemble(root, "wolf", ensemble_config(*tensors, steps, "max_batch_size: 8\n"))
    return root


@pytest.mark.parametrize("number", [250, pytest.param(1000, marks=pytest.mark.nightly)])
def test_many_models_under_load(browser: Browser, tmp_path: Path, axe: str, number: int) -> None:
    models = make_models(tmp_path / "models", number)
    echoes = [f"echo_{index:04}" for index in range(number - 3)]
    with (
        running(models, tmp_path / "log", "--console", start_s=300) as mesh,
        traffic(mesh, echoes, echoes[::-1], ["zebra", "wolf"]),
    ):
        _check_document(mesh, number)
        for width, theme in ((1280, "light"), (1280, "dark"), (390, "light")):
            _check_pages(browser, mesh, axe, number, width, theme)


def _check_document(mesh: Mesh, number: int) -> None:
    with console(mesh.http, "?limit=50&sort=errors&events=500") as client:

        def worst(document: dict[str, Any]) -> bool:
            rows = [document["models"]["rows"][key] for key in document["models"]["keys"][:2]]
            return (
                [row["name"] for row in rows] == ["yak", "zebra"]
                and rows[1].get("recent", {}).get("errors", 0) > 2
                and document["summary"]["errors_per_s"] > 0
            )

        client.until(worst, events=60)
        document = client.document
        assert document["summary"]["models"] == document["models"]["total"] == number
        assert document["summary"]["states"] == {"READY": number - 1, "UNAVAILABLE": 1}
        # All of the traffic, of which the page has 50 models.
        assert document["summary"]["requests_per_s"] > 10 * document["summary"]["errors_per_s"]
        recent = document["models"]["rows"]["zebra/1"]["recent"]
        assert recent["errors"] == pytest.approx(recent["requests"] / 2, abs=1)
        assert document["models"]["rows"]["zebra/1"]["health"] == "problem"
        assert len(document["events"]) == min(500, number + 2)
        (failed,) = (event for event in document["events"].values() if event["problem"])
        assert failed["model"] == "yak"
        del document["events"]
        assert len(json.dumps(document)) < _MAX_SNAPSHOT_BYTES
        sizes = client.sizes
        for _ in range(3):
            client.read_event()
        assert max(sizes[-3:]) < _MAX_PATCH_BYTES


def _check_pages(
    browser: Browser, mesh: Mesh, axe: str, number: int, width: int, theme: Any
) -> None:
    origin = f"http://{mesh.http}"
    size: Any = {"width": width, "height": 844}
    with opened(browser, origin, viewport=size, color_scheme=theme) as watched:
        page = watched.page
        for address, text in (
            ("overview", "yak version 1"),
            ("models?sort=errors", f"{number:,} versions"),
            ("model?name=zebra", "requests failed"),
            ("model?name=wolf", "reads from 1"),
            ("executors", "Show the 200 with the most memory"),
            ("events", "it is in a repository"),
            ("events?kind=problems", "weights.bin has 3 layers"),
        ):
            page.goto(f"{origin}/console#/{address}")
            page.locator("main", has_text=text).wait_for()
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            assert page.evaluate("document.querySelectorAll('*').length") < _MAX_ELEMENTS
            assert violations(page, axe) == []
        page.goto(f"{origin}/console#/models?sort=errors")
        page.locator("tbody tr", has_text="zebra").wait_for()
        names = page.locator("tbody tr th a").all_inner_texts()
        assert names[:2] == ["yak", "zebra"]
