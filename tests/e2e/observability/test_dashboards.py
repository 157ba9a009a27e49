"""What Grafana shows: every panel's query, asked of a real Prometheus that scrapes a mesh."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tritonclient import grpc

from tests.support.mesh.mesh import Mesh, ask, free_port, running, until
from tests.support.models.e2e_models import save_multiplier

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus"),
]

DEPLOY = Path(__file__).parents[3] / "deploy"
MODEL = "triple"
# A busy machine shall not look like a cache that is never reached.
PATIENT = "--cache-timeout-ms=2000"
CONFIG = 'backend: "onnxruntime"\nresponse_cache { enable: true }\n'
# What stays empty where there is no GPU.
DARK = {"GPU utilization"}
DASHBOARDS = [json.loads(path.read_text()) for path in DEPLOY.glob("grafana/dashboards/*.json")]


def panels() -> Iterator[tuple[str, str]]:
    """Title and query, as Grafana would send it."""
    for dashboard in DASHBOARDS:
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                query = target["expr"].replace("$__rate_interval", "1m").replace("$model", MODEL)
                assert "$" not in query
                yield panel["title"], query


@contextlib.contextmanager
def process(*argv: str) -> Iterator[None]:
    started = subprocess.Popen(argv)
    try:
        yield
    finally:
        started.terminate()
        started.wait(40)


class Prometheus:
    """One that scrapes these ports by the jobs' names that deploy/ gives them."""

    def __init__(self, folder: Path, **ports: int) -> None:
        folder.mkdir()
        self.address = f"127.0.0.1:{free_port()}"
        jobs = "".join(
            f"  - job_name: {job}\n    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
            for job, port in ports.items()
        )
        settings = folder / "prometheus.yml"
        settings.write_text(f"global: {{scrape_interval: 1s}}\nscrape_configs:\n{jobs}")
        self.argv = [
            "prometheus",
            f"--config.file={settings}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={self.address}",
            "--log.level=warn",
        ]

    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            return ask(self.address, "/-/ready")[0] == 200
        return False

    def get(self, path: str, **query: str) -> Any:
        status, body = ask(self.address, f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
        assert status == 200, (query, body.decode())
        return json.loads(body)["data"]

    def shows(self, query: str) -> bool:
        """Whether there is a number."""
        found = self.get("query", query=query)["result"]
        return any(not math.isnan(float(series["value"][1])) for series in found)


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mesh, Prometheus]]:
    root = tmp_path_factory.mktemp("dashboards")
    save_multiplier(root / "models", MODEL, 3, CONFIG)
    at, port = f"unix:{root}/cache", free_port()
    cache = ["--cache-config=local,size=1048576", f"--cache-listen={at}", f"--metrics-port={port}"]
    with (
        process(sys.executable, "-m", "nereid.services.cache", *cache),
        running(root / "models", root / "log", f"--cache-address={at}", PATIENT) as mesh,
    ):
        prometheus = Prometheus(root / "prometheus", gateway=mesh.metrics_port, cache=port)
        with process(*prometheus.argv):
            until(prometheus.ready, "Prometheus")
            yield mesh, prometheus


def traffic(mesh: Mesh) -> None:
    """A success, which may come from the cache, and a failure, over both protocols."""
    for value, status in ((1, 200), (1000, 500)):
        tensor = {"name": "I", "datatype": "INT64", "shape": [1], "data": [value]}
        body = json.dumps({"inputs": [tensor]}).encode()
        assert mesh.get(f"/v2/models/{MODEL}/infer", "POST", body)[0] == status
    with grpc.InferenceServerClient(mesh.grpc) as client:
        assert client.is_server_ready()


def test_every_panel_shows_something(it: tuple[Mesh, Prometheus]) -> None:
    mesh, prometheus = it
    empty = dict.fromkeys(panels())

    def all_shown() -> bool:
        traffic(mesh)
        for title, query in list(empty):
            if prometheus.shows(query):
                del empty[title, query]
        return {title for title, _ in empty} <= DARK

    with contextlib.suppress(TimeoutError):
        until(all_shown, "every panel")
    assert {title for title, _ in empty} == DARK, empty


def test_the_model_is_chosen_among_those_that_are_served(it: tuple[Mesh, Prometheus]) -> None:
    _, prometheus = it
    asked = [each["query"]["query"] for one in DASHBOARDS for each in one["templating"]["list"]]
    choices = [re.fullmatch(r"label_values\((.*), (\w+)\)", each) for each in asked]
    assert choices
    for choice in choices:
        assert choice is not None
        match, label = choice.groups()
        found = partial(prometheus.get, f"label/{label}/values", **{"match[]": match})
        until(found, f"series of {match}")
        assert found() == [MODEL]


def test_prometheus_takes_the_configuration_and_grafana_knows_its_source() -> None:
    checked = subprocess.run(
        ["promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    sources = (DEPLOY / "grafana/provisioning/datasources/datasources.yaml").read_text()
    known = set(re.findall(r"uid: (\w+)", sources))
    used = {panel["datasource"]["uid"] for one in DASHBOARDS for panel in one["panels"]}
    assert used <= known
