"""helm test: a pod that asks a gateway whether it is ready, and which models it has."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.chart.objects import labels, named, of_kind, selects
from tests.support.chart.rendering import Object, hooks, render
from tests.support.chart.value_sets import VALUE_SETS
from tests.support.mesh.mesh import running
from tests.support.models.onnx_models import identity, identity_config

_LEAST: Final = VALUE_SETS["least"]
_INDEX: Final = b'[{"name": "m", "version": "1", "state": "READY", "reason": ""}]'


class _Gateway(http.server.ThreadingHTTPServer):
    ready_status = 200
    index_status = 200


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Gateway

    def do_GET(self) -> None:
        assert self.path == "/v2/health/ready"
        self._reply(self.server.ready_status, b"")

    def do_POST(self) -> None:
        assert self.path == "/v2/repository/index"
        self.rfile.read(int(self.headers["Content-Length"]))
        self._reply(self.server.index_status, _INDEX)

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def gateway() -> Iterator[_Gateway]:
    with _Gateway(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def pod(values: Object) -> Object:
    (found,) = hooks(values)
    return found


def run(values: Object, gateway: _Gateway) -> subprocess.CompletedProcess[str]:
    """The pod's command, at a gateway on this machine."""
    return run_at(values, f"http://127.0.0.1:{gateway.server_port}")


def run_at(values: Object, url: str) -> subprocess.CompletedProcess[str]:
    (container,) = pod(values)["spec"]["containers"]
    interpreter, *options, script, _, certificates, credentials = container["command"]
    assert interpreter == "python"
    return subprocess.run(
        [sys.executable, *options, script, url, certificates, credentials],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_lists_what_is_served(gateway: _Gateway) -> None:
    done = run(_LEAST, gateway)
    assert (done.returncode, done.stdout.split()) == (0, ["ready", "m", "1", "READY"])


def test_a_mesh_passes_it(tmp_path: Path) -> None:
    model = tmp_path / "models" / "m"
    identity(model / "1", "FP32", ["n", 2])
    (model / "config.pbtxt").write_text(str(identity_config("FP32", "2")))
    with running(tmp_path / "models", tmp_path / "log") as mesh:
        done = run_at(_LEAST, f"http://{mesh.http}")
    assert (done.returncode, done.stdout.split()) == (0, ["ready", "m", "1", "READY"])


def test_a_gateway_that_is_not_ready_fails_it(gateway: _Gateway) -> None:
    gateway.ready_status = 503
    done = run(_LEAST, gateway)
    assert done.returncode == 1
    assert "503" in done.stdout


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("values", [{}, {"hardened": True}, {"gateway": {"auth": {"config": "x"}}}])
def test_credentials_may_be_asked_for_where_the_values_say_so(
    gateway: _Gateway, status: int, values: Object
) -> None:
    gateway.index_status = status
    assert run(_LEAST | values, gateway).returncode == (0 if values else 1)


def test_no_gateway_fails_it(gateway: _Gateway) -> None:
    gateway.server_close()
    gateway.shutdown()
    done = run(_LEAST, gateway)
    assert done.returncode == 1
    assert done.stdout


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("least", "http://demo-nereid.prod.svc:8000"),
        ("everybody's way in", "http://demo-nereid.prod.svc:80"),
        ("clients' TLS and keys", "https://demo-nereid.prod.svc:8000"),
    ],
)
def test_it_asks_the_service(name: str, url: str) -> None:
    (container,) = pod(VALUE_SETS[name])["spec"]["containers"]
    assert container["command"][4] == url


def test_it_is_a_test_with_an_image_of_the_chart() -> None:
    found = pod(_LEAST)
    assert found["metadata"]["annotations"]["helm.sh/hook"] == "test"
    workload = named(render(_LEAST), "Deployment", "demo-nereid-gateway")
    (gateway,) = workload["spec"]["template"]["spec"]["containers"]
    assert found["spec"]["containers"][0]["image"] == gateway["image"]
    # No Service sends it anything.
    for service in of_kind(render(_LEAST), "Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        assert not selects(selector, found["metadata"]["labels"])


@pytest.mark.parametrize("name", ["least", "hardened on IPv6"])
def test_network_policies_let_it(name: str) -> None:
    objects = render(VALUE_SETS[name])
    mine = pod(VALUE_SETS[name])["metadata"]["labels"]
    own = named(objects, "NetworkPolicy", "demo-nereid-test")["spec"]
    assert selects(own["podSelector"], mine)
    gateways = labels(named(objects, "Deployment", "demo-nereid-gateway"))
    (out,) = (
        rule
        for rule in own["egress"]
        if any(selects(peer["podSelector"], gateways) for peer in rule.get("to", ()))
    )
    assert [port["port"] for port in out["ports"]] == [8000]
    rules = named(objects, "NetworkPolicy", "demo-nereid-gateway")["spec"]["ingress"]
    assert any(
        8000 in {port["port"] for port in rule["ports"]}
        and (
            not rule.get("from")
            or any(
                selects(peer["podSelector"], mine) for peer in rule["from"] if "podSelector" in peer
            )
        )
        for rule in rules
    )
