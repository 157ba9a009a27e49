"""The built site in a browser: its search finds what readers ask for, and pages fit the screen."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.console.browser import launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.browser]

ROOT = Path(__file__).parents[3]
_PYTHON = ROOT / "build" / "site-env" / "bin" / "python"
_SITE = ROOT / "build" / "site"

# What readers type who have not seen the pages, and the page that has it.
QUESTIONS = {
    "how do I batch": "recipes/batching",
    "how do I stream tokens": "recipes/streaming",
    "why is my model slow": "operators/doctor|operators/explain",
    "how do I add an API key": "operators/authentication",
    "load models from S3": "recipes/kubernetes-s3|operators/repositories",
    "move from torchserve": "recipes/from-torchserve",
    "use two GPUs": "model-authors/models",
    "see latency p99": "operators/metrics|operators/console",
    "update a model without downtime": "operators/model-control",
    "python function as endpoint": "model-authors/python-first",
    "deploy on kubernetes": "operators/kubernetes|recipes/kubernetes-s3",
    "difference from triton": "compatibility",
    "install docker quickstart": "quickstart",
    "config.pbtxt example onnx": "model-authors/models",
    "failed to load model": "operators/model-control|model-authors/check",
    "python model pip dependencies": "model-authors/python-models",
    "prometheus metrics list": "operators/metrics|reference/metrics",
    "kubernetes helm readiness probe": "operators/kubernetes|recipes/kubernetes-s3",
    "reload model without restart": "operators/model-control",
    "perf_analyzer load test concurrency": "tools/perf",
    "gpu out of memory multiple instances": "operators/sizing|model-authors/models",
}
_FIRST = 3
# Lines of pages; longer ones are commands, whose blocks scroll.
_LINE = 120
_TOO_WIDE = f"""() => {{
  const wide = (each) => each.scrollWidth > each.clientWidth;
  const lines = (each) => Math.max(...each.textContent.split("\\n").map((line) => line.length));
  const outside = (each) => each.getBoundingClientRect().right > innerWidth;
  const blocks = [...document.querySelectorAll("article pre > code")];
  return [
    // Tables and blocks scroll by themselves, which they need to on phones alone.
    ...[...document.querySelectorAll("article :not(table *, pre *)")].filter(outside),
    ...(innerWidth < 1000 ? [] : [
      ...[...document.querySelectorAll("article table")].filter(wide),
      ...blocks.filter((each) => lines(each) <= {_LINE} && wide(each)),
    ]),
  ].map((each) => each.textContent.slice(0, 80));
}}"""
_MISSING = "[...document.images].filter((each) => !each.naturalWidth).map((each) => each.src)"


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing is logged."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The origin of the site, built from the pages as they are."""
    if not _PYTHON.exists():
        pytest.skip("needs build/site-env, which `make site` makes")
    command = [str(_PYTHON), "scripts/build_site.py"]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(_SITE)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def found(page: Page, question: str) -> list[str]:
    """The addresses of the first pages that the site's search shows."""
    state = page.locator(".md-search-result__meta")
    for text, shown in (("", "Type to start searching"), (question, "matching documents")):
        page.fill("[data-md-component=search-query]", text)
        # The page listens to keys.
        page.keyboard.press("Shift")
        state.get_by_text(shown).wait_for()
    results = page.locator(".md-search-result__item")
    results.first.wait_for()
    links = [each.locator("a").first for each in results.all()[:_FIRST]]
    return [str(each.get_attribute("href")) for each in links]


@pytest.fixture(scope="module")
def searched(browser: Browser, site: str) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(f"{site}/docs/quickstart/")
    yield page
    page.close()


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_search_finds_the_page(searched: Page, question: str) -> None:
    pages = found(searched, question)
    wanted = QUESTIONS[question].split("|")
    assert any(f"/docs/{each}/" in page for page in pages for each in wanted), pages


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_screen_and_have_their_pictures(
    browser: Browser, site: str, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.route("**/*.js", lambda route: route.abort())
    too_wide, missing = {}, {}
    for path in sorted(_SITE.rglob("index.html")):
        name = path.parent.relative_to(_SITE).as_posix()
        page.goto(f"{site}/{name}/")
        too_wide[name] = page.evaluate(_TOO_WIDE)
        missing[name] = page.evaluate(_MISSING)
    page.close()
    assert {name: found for name, found in too_wide.items() if found} == {}
    assert {name: found for name, found in missing.items() if found} == {}
