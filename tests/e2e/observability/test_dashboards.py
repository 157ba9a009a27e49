"""What Grafana shows and Prometheus evaluates: every panel, recording rule and alert, asked of a
real Prometheus that scrapes a mesh.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tritonclient import grpc

from tests.support.mesh.mesh import Mesh, ask, free_port, running, until
from tests.support.mesh.traced import SAMPLED, TRACE, flags
from tests.support.models.e2e_models import save_multiplier
from tests.support.models.generators import logits_generator
from tests.support.peers.otlp_receiver import receiver
from tests.support.peers.prometheus import Prometheus, panels, substitute

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus"),
]

DEPLOY = Path(__file__).parents[3] / "deploy"
MODEL = "triple"
# It gets copies of the model's requests.
SHADOW = "quadruple"
# It generates texts.
GENERATOR = "chat"
# A busy machine shall not look like a cache that is never reached.
PATIENT = "--cache-timeout-ms=2000"
CONFIG = (
    'backend: "onnxruntime"\nresponse_cache { enable: true }\n'
    'parameters { key: "traffic" value { string_value: "{\\"weights\\": {\\"1\\": 1}}" } }\n'
    'parameters { key: "shadow" value { string_value: "{\\"to\\": \\"model:quadruple\\"}" } }\n'
    "version_policy { all {} }\n"
)
# What stays empty where there is no GPU.
DARK = {"GPU utilization"}
# What needs executors' own --metrics-port, or --metrics-config histogram_latencies=true.
OPTIONAL = {"CPU by class", "Memory by class", "Time to the first response, with traces"}
# Inputs whose responses are not cached yet.
UNSEEN = itertools.cycle(range(2, 1000))
DASHBOARDS = [json.loads(path.read_text()) for path in DEPLOY.glob("grafana/dashboards/*.json")]


# What is asked for: the names of series, with their labels.
SELECTOR = re.compile(r"\b(?:up\b|(?:nereid|nv|process)[_:][a-z0-9_:]+)(?:\{[^}]*\})?")


@contextlib.contextmanager
def process(*argv: str) -> Iterator[None]:
    started = subprocess.Popen(argv)
    try:
        yield
    finally:
        started.terminate()
        started.wait(40)


def make_prometheus(folder: Path, **ports: int) -> Prometheus:
    """One that scrapes these ports by jobs of these names, with the rules of deploy/."""
    folder.mkdir()
    jobs = "".join(
        f"  - job_name: {job}\n    static_configs:\n"
        f"      - targets: ['127.0.0.1:{port}']\n        labels: {{class: cpu}}\n"
        for job, port in ports.items()
    )
    for name in ("recording.yml", "alerts.yml"):
        rules = (DEPLOY / "prometheus/rules" / name).read_text()
        (folder / name).write_text(rules.replace("interval: 15s", "interval: 1s"))
    settings = folder / "prometheus.yml"
    settings.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [recording.yml, alerts.yml]\nscrape_configs:\n{jobs}"
    )
    return Prometheus(settings, folder / "data", f"127.0.0.1:{free_port()}")


def write_models(repository: Path) -> None:
    save_multiplier(repository, MODEL, 3, CONFIG)
    shutil.copytree(repository / MODEL / "1", repository / MODEL / "2")
    save_multiplier(repository, SHADOW, 4, 'backend: "onnxruntime"\n')
    logits_generator(repository / GENERATOR)


def begin_rollout(mesh: Mesh) -> None:
    plan = {"to": 2, "steps": [1, 100], "every_seconds": 3600, "if": "errors<99%"}
    path = f"/v2/repository/models/{MODEL}/rollout"
    status, reply = mesh.get(path, "POST", json.dumps(plan).encode())
    assert status == 200, reply


def all_panels() -> Iterator[tuple[str, str]]:
    """Titles and queries, those of OpenAI's API for the model that generates."""
    for model in (MODEL, GENERATOR):
        for title, query in panels(DASHBOARDS, model):
            if ("gen_ai_" in query) == (model == GENERATOR):
                yield title, query


class Watched(NamedTuple):
    """A mesh and who scrapes it."""

    mesh: Mesh
    prometheus: Prometheus


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("dashboards")
    write_models(root / "models")
    at, join = f"unix:{root}/cache", f"--scheduler-address=unix:{root}/join"
    ports = {"cache": free_port(), "executor": free_port()}
    services = {
        "cache": ("--cache-config=local,size=1048576", f"--cache-listen={at}"),
        "executor": ("--gpus=none", "--metrics-interval-ms=100", join),
    }
    commands = [
        [sys.executable, "-m", f"nereid_{name}", f"--metrics-port={ports[name]}", *given]
        for name, given in services.items()
    ]
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(receiver())
        for command in commands:
            stack.enter_context(process(*command))
        given = [
            f"--cache-address={at}",
            PATIENT,
            join,
            "--openai-api",
            "--metrics-config=histogram_latencies=true",
        ]
        given += flags(collector.url, "mode=opentelemetry")
        mesh = stack.enter_context(running(root / "models", root / "log", *given, executors=0))
        # Gateway and scheduler share a process, and a page. The names of jobs are the reader's.
        jobs = {"edge": mesh.metrics_port, "brain": mesh.metrics_port}
        jobs |= {"workers": ports["executor"], "store": ports["cache"]}
        prometheus = make_prometheus(root / "prometheus", **jobs)
        stack.enter_context(process(*prometheus.argv))
        until(prometheus.ready, "Prometheus")
        begin_rollout(mesh)
        yield Watched(mesh, prometheus)


def traffic(mesh: Mesh) -> None:
    """Two successes, of which one may come from the cache, and a failure, over both protocols, and
    a generated text.
    """
    for value, status in ((1, 200), (next(UNSEEN), 200), (1000, 500)):
        tensor = {"name": "I", "datatype": "INT64", "shape": [1], "data": [value]}
        body = json.dumps({"inputs": [tensor]}).encode()
        assert mesh.get(f"/v2/models/{MODEL}/infer", "POST", body)[0] == status
    asked = {"model": GENERATOR, "prompt": "cat", "max_tokens": 3}
    assert mesh.get("/v1/completions", "POST", json.dumps(asked).encode())[0] == 200
    with grpc.InferenceServerClient(mesh.grpc) as client:
        assert client.is_server_ready()


def test_every_panel_shows_something(it: Watched) -> None:
    mesh, prometheus = it
    empty = dict.fromkeys(all_panels())

    def all_shown() -> bool:
        traffic(mesh)
        for title, query in list(empty):
            if prometheus.shows(query):
                del empty[title, query]
        return {title for title, _ in empty} <= DARK

    with contextlib.suppress(TimeoutError):
        until(all_shown, "every panel")
    assert {title for title, _ in empty} == DARK, empty


def test_no_panel_or_rule_names_a_job() -> None:
    texts = [*panels(DASHBOARDS, MODEL)]
    texts += [(path.name, path.read_text()) for path in (DEPLOY / "prometheus/rules").iterdir()]
    texts += [
        (each["name"], each["query"]["query"])
        for one in DASHBOARDS
        for each in one["templating"]["list"]
    ]
    assert not [(title, query) for title, query in texts if re.search(r"job\W{0,2}[=!]", query)]


def test_every_panel_shows_a_lone_server_under_any_job(tmp_path: Path) -> None:
    """What `nereid serve` alone has: one port, scraped under the reader's name for it."""
    write_models(tmp_path / "models")
    empty = dict.fromkeys(all_panels())
    with contextlib.ExitStack() as stack:
        given = ("--cache-config=local,size=1048576", PATIENT, "--openai-api")
        mesh = stack.enter_context(running(tmp_path / "models", tmp_path / "log", *given))
        prometheus = make_prometheus(tmp_path / "prometheus", my_models=mesh.metrics_port)
        stack.enter_context(process(*prometheus.argv))
        until(prometheus.ready, "Prometheus")
        begin_rollout(mesh)

        def all_shown() -> bool:
            traffic(mesh)
            for title, query in list(empty):
                if prometheus.shows(query):
                    del empty[title, query]
            return {title for title, _ in empty} <= DARK | OPTIONAL

        with contextlib.suppress(TimeoutError):
            until(all_shown, "every panel")
    assert {title for title, _ in empty} <= DARK | OPTIONAL, empty


def test_every_rule_can_be_evaluated(it: Watched) -> None:
    mesh, prometheus = it

    def rules() -> dict[str, dict[str, Any]]:
        return {rule["name"]: rule for rule in prometheus.rules()}

    def all_evaluated() -> bool:
        traffic(mesh)
        return all(rule["health"] != "unknown" for rule in rules().values())

    until(all_evaluated, "every rule's evaluation")
    broken = {name: each for name, each in rules().items() if each["health"] != "ok"}
    assert not broken
    recorded = [name for name, rule in rules().items() if rule["type"] == "recording"]
    assert len(recorded) == 8
    for name in recorded:
        until(partial(prometheus.shows, name), name)


def test_alerts_ask_for_series_that_there_are(it: Watched) -> None:
    """promtool's series are made up: they would not notice a name or a label that nothing has."""
    mesh, prometheus = it
    missing = {found for rule in prometheus.rules() for found in SELECTOR.findall(rule["query"])}
    assert len(missing) > 20

    def all_found() -> bool:
        traffic(mesh)
        for selector in list(missing):
            if prometheus.get("series", **{"match[]": selector}):
                missing.remove(selector)
        return not missing

    with contextlib.suppress(TimeoutError):
        until(all_found, "every series", 20)
    assert missing == set()


def test_a_bucket_leads_to_the_trace_of_a_request(it: Watched) -> None:
    mesh, prometheus = it
    tensor = {"name": "I", "datatype": "INT64", "shape": [1], "data": [7]}
    body = json.dumps({"inputs": [tensor]}).encode()
    began = time.time()
    assert ask(mesh.http, f"/v2/models/{MODEL}/infer", "POST", body, SAMPLED)[0] == 200

    def traces() -> set[str]:
        series = prometheus.get(
            "query_exemplars",
            query="nv_inference_first_response_histogram_ms_bucket",
            start=f"{began - 60}",
            end=f"{time.time() + 60}",
        )
        return {each["labels"]["trace_id"] for one in series for each in one["exemplars"]}

    until(traces, "an exemplar")
    # Nobody else was traced.
    assert traces() == {TRACE}


def test_a_variable_is_chosen_among_what_is_there(it: Watched) -> None:
    prometheus = it.prometheus
    asked = [each["query"]["query"] for one in DASHBOARDS for each in one["templating"]["list"]]
    choices = [re.fullmatch(r"label_values\((.*), (\w+)\)", each) for each in asked]
    assert choices
    for choice in choices:
        assert choice is not None
        match, label = substitute(choice[1], MODEL), choice[2]
        until(partial(prometheus.get, "series", **{"match[]": match}), f"series of {match}")
        # Namespaces and releases are Kubernetes'.
        expected = [GENERATOR, SHADOW, MODEL] if label == "model" else []
        assert prometheus.get(f"label/{label}/values", **{"match[]": match}) == expected


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
