"""Weights and rollouts of a mesh of two gateways and two schedulers, over many requests and runs.

    python -m pytest -m nightly -s tests/e2e/models/test_traffic_campaign.py

The tests print what they have measured.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.canary import MODEL
from tests.support.models.e2e_models import save_scaler

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

HTTP_OK: Final = 200
CLIENTS: Final = 8
FLAGS: Final = ("--schedulers=2", "--gateways=2")
REQUESTS: Final = 100_000
WEIGHTS: Final = {1: 70, 2: 20, 3: 10}
SCALER = "max_batch_size: 16\ndynamic_batching {}\nversion_policy { all {} }\n"
RUNS: Final = 20
EQUAL_RUNS: Final = 100
# A step of the canary's runs lasts for longer than it may take to go back.
WINDOW_S: Final = 60
RULES: Final = "errors<1% p50<2x p95<3x difference<1e-2"
EQUAL_RULES: Final = "errors<1% p50<1.5x p95<2x p99<3x"
CANARY = """
backend: "python"
max_batch_size: 8
version_policy { all {} }
instance_group [{ count: 1 kind: KIND_CPU }]
input { name: "INPUT0" data_type: TYPE_FP32 dims: [8] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [8] }
"""


class Response(NamedTuple):
    """Response to a request without a version. value: 0 for an error."""

    user: int
    status: int
    version: int
    value: float
    took_s: float
    text: str


class Clients:
    """Clients with keep-alive connections; each request has the key of a user."""

    def __init__(self, port: int, model: str) -> None:
        self._port = port
        self._path = f"/v2/models/{model}/infer"
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 8], "data": [1.0] * 8}
        self._body = json.dumps({"inputs": [tensor]}).encode()
        self.reconnects = 0

    def send_all(self, users: Iterable[int], on_response: Callable[[Response], None]) -> None:
        """Send a request for each user; one whose gateway ends is sent again."""
        lock, iterator = threading.Lock(), iter(users)

        def client() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            while True:
                with lock:
                    user = next(iterator, None)
                if user is None:
                    connection.close()
                    return
                on_response(self._send(connection, user))

        with ThreadPoolExecutor(CLIENTS) as pool:
            for each in [pool.submit(client) for _ in range(CLIENTS)]:
                each.result()

    def _send(self, connection: http.client.HTTPConnection, user: int) -> Response:
        while True:
            began_s = time.monotonic()
            try:
                connection.request("POST", self._path, self._body, {"x-user": str(user)})
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                self.reconnects += 1
                continue
            took_s = time.monotonic() - began_s
            if response.status != HTTP_OK:
                return Response(user, response.status, 0, 0.0, took_s, body.decode())
            document = json.loads(body)
            version, value = int(document["model_version"]), document["outputs"][0]["data"][0]
            return Response(user, response.status, version, value, took_s, "")


def test_weights_hold_and_callers_keep_their_versions_whatever_ends(tmp_path: Path) -> None:
    root, state = tmp_path / "models", tmp_path / "state"
    for version in WEIGHTS:
        save_scaler(root, "m", version + 1, SCALER, version)
    flags = (*FLAGS, f"--state-directory={state}")
    known: dict[int, int] = {}
    versions: Counter[int] = Counter()
    others: Counter[str] = Counter()
    moved: list[Response] = []

    def on_response(response: Response) -> None:
        if response.status != HTTP_OK:
            others[f"{response.status} {response.text[:100]}"] += 1
            return
        versions[response.version] += 1
        assert response.value == response.version + 1
        if known.setdefault(response.user, response.version) != response.version:
            moved.append(response)

    # Each user has two requests: one before, and one while or after everything was restarted.
    users = list(range(REQUESTS // 2))
    chance = random.Random(1)
    began_s = time.monotonic()
    with running(root, tmp_path / "log", *flags, executors=2) as mesh:
        body = json.dumps({"weights": WEIGHTS, "by": "header:x-user"}).encode()
        status, text = mesh.get("/v2/repository/models/m/traffic", "POST", body)
        assert status == HTTP_OK, text
        clients = Clients(mesh.http_port, "m")
        clients.send_all(users, on_response)
        chance.shuffle(users)
        ended = _kill_all_in_turn(mesh, clients, users[: len(users) // 2], on_response)
        reconnects = clients.reconnects
    with running(root, tmp_path / "log", *flags, executors=2) as mesh:
        Clients(mesh.http_port, "m").send_all(users[len(users) // 2 :], on_response)
    took_s = time.monotonic() - began_s
    total = sum(versions.values())
    shares = {version: count / total for version, count in sorted(versions.items())}
    print(f"\n{total} requests of {len(known)} users in {took_s:.0f} s; weights {WEIGHTS}; shares")
    print({version: f"{share:.4f}" for version, share in shares.items()})
    print(f"killed meanwhile: {dict(ended)}, then all restarted; callers moved: {len(moved)};")
    print(f"connections that broke: {reconnects}; other responses: {dict(others)}")
    assert others == {}
    assert total == REQUESTS
    assert moved == []
    for version, weight in WEIGHTS.items():
        assert abs(shares[version] - weight / 100) < 0.01


def _kill_all_in_turn(
    mesh: Mesh, clients: Clients, users: list[int], on_response: Callable[[Response], None]
) -> Counter[str]:
    """Send the users' requests while each gateway, scheduler and executor is killed once."""
    ended: Counter[str] = Counter()
    finished = threading.Event()

    def kill() -> None:
        for module in ("nereid_gateway", "nereid_scheduler", "nereid_executor"):
            for pid in mesh.children(module):
                os.kill(pid, signal.SIGKILL)
                ended[module] += 1
                until(_is_whole(mesh, module), f"2 of {module}, and the mesh to be ready")
        finished.set()

    def requests() -> Iterator[int]:
        for number, user in enumerate(users):
            # The last users wait until everything has ended once.
            if number > len(users) * 0.9:
                assert finished.wait(120)
            yield user

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        clients.send_all(requests(), on_response)
        killing.result()
    return ended


def _is_whole(mesh: Mesh, module: str) -> Callable[[], bool]:
    """Return whether both processes of this module run, and the mesh is ready."""

    def is_whole() -> bool:
        try:
            is_ready = mesh.get("/v2/health/ready")[0] == HTTP_OK
        except (OSError, http.client.HTTPException):
            return False
        return is_ready and len(mesh.children(module)) == 2

    return is_whole


class Site:
    """A mesh under load whose second version is a canary with a mode."""

    def __init__(self, mesh: Mesh, mode: Path) -> None:
        self._mesh = mesh
        self._mode = mode
        self.responses: list[Response] = []
        self.set_mode("")

    def set_mode(self, mode: str) -> None:
        # The canary must never read half of it.
        part = self._mode.with_name("mode.part")
        part.write_text(mode)
        part.rename(self._mode)

    @contextmanager
    def load(self) -> Iterator[None]:
        ended = threading.Event()

        def users() -> Iterator[int]:
            while not ended.is_set():
                yield random.getrandbits(40)

        with ThreadPoolExecutor(1) as pool:
            clients = Clients(self._mesh.http_port, "m")
            loading = pool.submit(clients.send_all, users(), self.responses.append)
            try:
                yield
            finally:
                ended.set()
            loading.result()

    def begin(self, steps: list[int], every_s: float, rules: str) -> None:
        self._post("rollout", {"to": 2, "steps": steps, "every_seconds": every_s, "if": rules})

    def set_shadow(self) -> None:
        rules = {"to": "version:2", "percent": 50}
        self._post("shadow", rules)

    def set_traffic(self, weights: dict[str, int]) -> None:
        self._post("traffic", {"weights": weights, "by": "header:x-user"})

    def _post(self, what: str, document: object) -> None:
        path = f"/v2/repository/models/m/{what}"
        status, text = self._mesh.get(path, "POST", json.dumps(document).encode())
        assert status == HTTP_OK, text

    def rollout(self) -> dict[str, Any]:
        status, text = self._mesh.get("/v2/repository/models/m/rollout")
        assert status == HTTP_OK, text
        document: dict[str, Any] = json.loads(text)
        return document

    def abort(self) -> None:
        self._post("rollout", {"action": "abort"})

    def await_canary(self, count: int) -> None:
        """Wait for so many responses of the canary from now on."""
        first = len(self.responses)

        def have_come() -> bool:
            return sum(each.version == 2 for each in self.responses[first:]) >= count

        until(have_come, "responses of the canary")

    def await_end(self, limit_s: float) -> dict[str, Any]:
        until(lambda: self.rollout()["state"] != "running", "the rollout's end", limit_s)
        return self.rollout()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    root = tmp_path / "models" / "m"
    for version in ("1", "2"):
        (root / version).mkdir(parents=True)
        (root / version / "model.py").write_text(MODEL)
    (root / "config.pbtxt").write_text(CANARY)
    (root / "mode").write_text("")
    with running(tmp_path / "models", tmp_path / "log", *FLAGS) as mesh:
        site = Site(mesh, root / "mode")
        site.set_traffic({"1": 1})
        yield site


@pytest.mark.parametrize("mode", ["failing", "slow", "different"])
def test_a_canary_that_breaks_loses_its_requests(site: Site, mode: str) -> None:
    durations_s, lost, shares = [], [], []
    latencies: dict[str, list[float]] = {"before": [], "after": []}
    site.set_shadow()
    with site.load():
        for _ in range(RUNS):
            site.set_mode("")
            site.begin([10, 50, 100], WINDOW_S, RULES)
            first = len(site.responses)
            site.await_canary(100)
            broken, began_s = len(site.responses), time.monotonic()
            site.set_mode(mode)
            document = site.await_end(WINDOW_S)
            durations_s.append(time.monotonic() - began_s)
            ended = len(site.responses)
            assert (document["state"], document["percent"]) == ("back", 0), document
            assert document["reason"].startswith("at 10%: "), document
            for phase, part in (
                ("before", site.responses[first:broken]),
                ("after", site.responses[broken:ended]),
            ):
                latencies[phase] += [each.took_s for each in part if each.version == 1]
            part = site.responses[broken:ended]
            lost.append(sum(each.version != 1 for each in part))
            shares.append(lost[-1] / len(part))
    others = [each for each in site.responses if each.version == 1]
    failed = [each for each in site.responses if each.status != HTTP_OK]
    harmed = [each for each in others if each.value != 2.0]
    harmed += [each for each in failed if "broken canary" not in each.text]
    print(f"\n{mode}: {RUNS} runs, all back; after s: {_spread(durations_s)}")
    print(
        f"requests of the broken canary in a run: {_spread(lost)}, share {max(shares):.3f} at most"
    )
    print(f"{len(site.responses)} requests, {len(others)} of the others, harmed: {len(harmed)}")
    for phase, values in latencies.items():
        print(f"the others' latency {phase} the break, ms: {_quantiles(values)}")
    assert harmed == []


@pytest.mark.parametrize("shadow", ["", " difference<1e-2"])
def test_equal_versions_never_go_back(site: Site, shadow: str) -> None:
    states: Counter[str] = Counter()
    reasons: list[str] = []
    durations_s = []
    if shadow:
        site.set_shadow()
    with site.load():
        for number in range(EQUAL_RUNS):
            began_s = time.monotonic()
            site.begin([10, 50, 100], 1.0, EQUAL_RULES + shadow)
            try:
                document = site.await_end(60)
            except TimeoutError:
                document = {"state": "undecided", "reason": json.dumps(site.rollout()["rules"])}
                site.abort()
            durations_s.append(time.monotonic() - began_s)
            states[document["state"]] += 1
            if document["state"] != "done":
                reasons.append(document["reason"])
                print(f"\nrun {number}: {document['state']}: {document['reason']}")
            site.set_traffic({"1": 1})
    print(f"\nequal versions: {dict(states)} of {EQUAL_RUNS} runs; s: {_spread(durations_s)}")
    print(f"{len(site.responses)} requests, {Counter(each.status for each in site.responses)}")
    assert states["back"] == 0
    assert all(each.status == HTTP_OK and each.value == 2.0 for each in site.responses)


def _spread(values: list[float] | list[int]) -> str:
    return f"median {statistics.median(values):.3g}, {min(values):.3g} to {max(values):.3g}"


def _quantiles(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100)
    return f"p50 {cuts[49] * 1e3:.1f}, p99 {cuts[98] * 1e3:.1f}"
