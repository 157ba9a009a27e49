"""A version gets its requests by steps: a good one all of them, one that fails or is slow none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from nereid_explain import rollout as command
from nereid_explain import traffic
from tests.support.mesh.mesh import Mesh, ask, running, until
from tests.support.models.canary import MODEL

pytestmark = pytest.mark.slow

HTTP_OK = 200
CLIENTS = 6
CONFIG = """
backend: "python"
max_batch_size: 4
version_policy { all {} }
instance_group [{ count: 1 kind: KIND_CPU }]
input { name: "INPUT0" data_type: TYPE_INT32 dims: [1] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [1] }
"""
PLAN = ("--to", "2", "--steps", "20,60,100", "--every", "1s", "--if")


class Site:
    """A mesh under load, whose second version has a mode."""

    def __init__(self, mesh: Mesh, mode: Path, log: Path) -> None:
        self.mesh = mesh
        self._mode = mode
        self._log = log
        self.seen: Counter[tuple[int, str]] = Counter()

    def set_mode(self, mode: str) -> None:
        self._mode.write_text(mode)

    def log(self) -> str:
        return self._log.read_text()

    @contextmanager
    def load(self) -> Iterator[None]:
        """Requests without a version, and their outcomes by status and version."""
        ended = threading.Event()
        tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]}
        body = json.dumps({"inputs": [tensor]}).encode()

        def client() -> None:
            while not ended.is_set():
                status, text = ask(self.mesh.http, "/v2/models/m/infer", "POST", body)
                version = json.loads(text)["model_version"] if status == HTTP_OK else ""
                self.seen[status, version] += 1

        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(client) for _ in range(CLIENTS)]
            try:
                yield
            finally:
                ended.set()
            for each in clients:
                each.result()

    def rollout(self, rules: str, *more: str) -> int:
        return command.main(["m", *PLAN, rules, *more, "-u", self.mesh.http])

    def act(self, *arguments: str) -> int:
        return command.main(["m", *arguments, "-u", self.mesh.http])

    def document(self) -> dict[str, object]:
        status, text = self.mesh.get("/v2/repository/models/m/rollout")
        assert status == HTTP_OK, text
        document: dict[str, object] = json.loads(text)
        return document

    def weights(self) -> object:
        return json.loads(self.mesh.get("/v2/repository/models/m/traffic")[1])["traffic"]


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site whose mesh has the flags that a test gives by its parameter."""
    root = tmp_path / "models" / "m"
    for version in ("1", "2"):
        (root / version).mkdir(parents=True)
        (root / version / "model.py").write_text(MODEL)
    (root / "config.pbtxt").write_text(CONFIG)
    log = tmp_path / "log"
    with running(tmp_path / "models", log, *getattr(request, "param", ())) as mesh:
        made = Site(mesh, root / "mode", log)
        made.set_mode("")
        yield made


def test_a_good_version_gets_all_requests_and_bad_ones_lose_them(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without weights, the version would have all requests already.
    assert site.rollout("errors<5%") == 2
    assert "nereid traffic m 3=1" in capsys.readouterr().err
    assert traffic.main(["m", "-u", site.mesh.http, "1=1"]) == 0
    assert site.rollout("difference<1e-3") == 2
    assert "difference needs a shadow that compares version 2" in capsys.readouterr().err
    with site.load():
        site.set_mode("failing")
        assert site.rollout("errors<5% p50<20x") == 1
        assert "errors<5% is broken" in capsys.readouterr().out
        assert site.weights() == {"weights": {"1": 1, "2": 0}}
        site.set_mode("slow")
        assert site.rollout("errors<5% p50<3x") == 1
        assert "p50<3x is broken" in capsys.readouterr().out
        site.set_mode("")
        failed = sum(count for (status, _), count in site.seen.items() if status != HTTP_OK)
        assert failed < site.seen[HTTP_OK, "1"] / 5
        assert site.rollout("errors<5% p50<20x") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "m: version 2: running, 20%"
        assert lines[-1] == "m: version 2: done, 100%: all rules held at every step"
        site.seen.clear()
        until(lambda: site.seen[HTTP_OK, "2"] > 50, "requests of the new version")
    assert {status for status, _ in site.seen} == {HTTP_OK}
    assert site.weights() == {"weights": {"2": 100}}
    page = site.mesh.metrics()
    for outcome, count in (("back", 2), ("done", 1)):
        assert f'nereid_model_rollouts_total{{model="m",outcome="{outcome}"}} {count}' in page
    assert "rollout of model 'm' to version 2: back" in site.log()


@pytest.mark.parametrize(
    ("site", "module", "processes"),
    [
        ((), "nereid_mesh.serve.joined", 1),
        pytest.param(("--schedulers=2",), "nereid_scheduler", 2, marks=pytest.mark.nightly),
    ],
    indirect=["site"],
)
def test_a_rollout_is_paused_survives_its_scheduler_and_is_aborted(
    site: Site, module: str, processes: int
) -> None:
    assert site.act("--pause") == 2
    assert traffic.main(["m", "1=1", "-u", site.mesh.http]) == 0
    assert site.rollout("errors<5%", "--detach") == 0
    assert site.rollout("errors<5%", "--detach") == 2
    # Without requests it waits, and says so.
    wait = "0 of 20 requests have come"
    until(lambda: command.describe_wait(site.document()) == wait, "the first look")
    assert traffic.main(["m", "1=1", "-u", site.mesh.http]) == 2
    assert site.act("--pause") == 0
    assert site.act("--pause") == 2
    assert (site.document()["state"], site.document()["percent"]) == ("paused", 20)
    for number in range(processes):
        until(lambda: len(site.mesh.children(module)) == processes, "all schedulers")
        os.kill(site.mesh.children(module)[number], signal.SIGKILL)
        until(lambda: site.mesh.get("/v2/health/ready")[0] == HTTP_OK, "the mesh to be ready")
    assert (site.document()["state"], site.document()["percent"]) == ("paused", 20)
    assert 'nereid_model_rollout_percent{model="m",version="2"} 20' in site.mesh.metrics()
    assert site.act("--resume") == 0
    with site.load():
        until(lambda: site.document()["percent"] == 60, "the next step")
    assert site.act("--abort") == 0
    assert site.act("--abort") == 2
    assert site.weights() == {"weights": {"1": 1, "2": 0}}
    assert site.document()["reason"] == "aborted at 60%"
    assert site.act() == 1


@pytest.mark.parametrize(
    "site", [("--model-control-mode=explicit", "--load-model=m")], indirect=["site"]
)
def test_a_rollout_outlives_reloads_and_its_executor(site: Site, tmp_path: Path) -> None:
    source = tmp_path / "models" / "m" / "2" / "model.py"
    wait = "0 of 20 requests have come"
    assert traffic.main(["m", "1=1", "-u", site.mesh.http]) == 0
    plan = ("--to", "2", "--steps", "50,100", "--every", "1h", "--if", "errors<20%")

    def load_model() -> int:
        return site.mesh.get("/v2/repository/models/m/load", "POST")[0]

    def is_measured() -> bool:
        return bool(site.document()["rules"])

    assert site.act(*plan, "--detach") == 0
    until(lambda: command.describe_wait(site.document()) == wait, "the first look")
    with site.load():
        until(is_measured, "the rules")
        source.write_text(MODEL + "# Edited.\n")
        assert load_model() == HTTP_OK
        until(is_measured, "the rules after a reload")
        # A load that fails leaves the former version, and its measurements.
        source.write_text("raise ValueError\n")
        assert load_model() != HTTP_OK
        before = site.seen[HTTP_OK, "2"]
        until(lambda: site.seen[HTTP_OK, "2"] > before + 20, "requests of the version")
        source.write_text(MODEL)
        pid = site.mesh.kill("nereid_executor")
        until(lambda: site.mesh.children("nereid_executor") not in ([], [pid]), "an executor")
        before = site.seen[HTTP_OK, "2"]
        until(lambda: site.seen[HTTP_OK, "2"] > before + 20, "requests of the version")
        document = site.document()
        assert (document["state"], document["percent"]) == ("running", 50), document
        assert site.weights() == {"weights": {"1": 50, "2": 50}}
        shutil.rmtree(source.parent)
        assert load_model() == HTTP_OK
        until(lambda: site.document()["state"] == "back", "the end")
    document = site.document()
    assert document["reason"] == "at 50%: version 2 is UNAVAILABLE"
    assert site.weights() == {"weights": {"1": 1, "2": 0}}


def test_what_is_no_rollout_is_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert traffic.main(["m", "1=1", "-u", site.mesh.http]) == 0
    path = "/v2/repository/models/m/rollout"
    good = {"to": 2, "steps": [1, 100], "every_seconds": 1, "if": "errors<1%"}
    wrong: tuple[object, ...] = (
        *([], "x", {}, {"action": "stop"}, {"action": "pause", "to": 2}, good | {"more": 1}),
        *(
            good | {"to": 3},
            good | {"to": "2"},
            good | {"steps": [100]},
            good | {"steps": [1.5, 100]},
        ),
        *(good | {"every_seconds": 0}, good | {"every_seconds": True}, good | {"if": "errors<1"}),
    )
    for document in wrong:
        status, text = site.mesh.get(path, "POST", json.dumps(document).encode())
        assert status in {400, 404}, (document, text)
    assert site.mesh.get(path, "POST", b"{")[0] == 400
    assert site.mesh.get(path)[0] == 404
    assert site.weights() == {"weights": {"1": 1}}
    for arguments in (("--to", "2"), ("--pause", "--to", "2"), (*PLAN, "errors<1"), (*PLAN, "")):
        with pytest.raises(SystemExit):
            site.act(*arguments)
    capsys.readouterr()
