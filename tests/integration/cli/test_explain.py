"""`nereid explain` and `nereid doctor` over HTTP, also where they may not ask."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from nereid_explain import command, doctor, traffic
from tests.support.peers.http_server import http_server

pytestmark = pytest.mark.slow

_INDEX = json.dumps([{"name": "m", "version": "1", "state": "READY", "reason": ""}])
_MODEL = "/v2/models/m/versions/1"
_PAGES = {
    "/v2/repository/index": _INDEX,
    "/v2/health/ready": "",
    f"{_MODEL}/ready": "",
    f"{_MODEL}/config": json.dumps({"name": "m", "max_batch_size": 4, "dynamic_batching": {}}),
    f"{_MODEL}/stats": json.dumps({"model_stats": [{"inference_count": 8, "execution_count": 2}]}),
    "/metrics": 'nereid_executors 1\nnereid_instances{model="m",version="1",state="free"} 2\n',
}


@contextmanager
def serving(pages: dict[str, str], key: str = "") -> Iterator[str]:
    """A server's address; 403 without the key, 404 for other pages."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path.partition("?")[0])
            status = 404 if body is None else 200
            if key and self.headers.get("X-Key") != key:
                status, body = 403, json.dumps({"error": "no"})
            self.send_response(status)
            self.end_headers()
            self.wfile.write((body or "").encode())

        do_POST = do_GET  # noqa: N815 - http.server's name

    with http_server(Handler) as address:
        yield address


def test_a_model_that_serves(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(_PAGES, key="k") as address:
        flags = [f"--url={address}", f"--metrics-url={address}", "--header=X-Key: k"]
        assert command.main(["m", *flags, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert command.main(["m", *flags, "--seconds=0.01"]) == 0
        assert "it has executed nothing meanwhile" in capsys.readouterr().out
    assert document["format"] == "nereid.explain/1"
    assert document["versions"] == [{"version": "1", "state": "READY", "reason": "", "ready": True}]
    codes = [each["code"] for each in document["statements"]]
    assert codes[:2] == ["ready", "instances"]
    assert document["server_ready"] is True


def test_the_mesh_warns_of_traffic_and_shadows(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/v2/repository/models/m"
    pages = {
        **_PAGES,
        f"{path}/traffic": json.dumps({"model": "m", "warnings": ["version 2 is not served"]}),
        f"{path}/shadow": json.dumps({"model": "m", "problem": "version '3' is not ready"}),
    }
    with serving(pages) as address:
        assert command.main(["m", f"--url={address}", f"--metrics-url={address}"]) == 1
    printed = capsys.readouterr().out
    assert "version 2 is not served" in printed
    assert "version '3' is not ready" in printed


def test_without_metrics_the_statistics_say_less(capsys: pytest.CaptureFixture[str]) -> None:
    pages = {path: body for path, body in _PAGES.items() if path != "/metrics"}
    with serving(pages) as address:
        assert command.main(["m", f"--url={address}", f"--metrics-url={address}", "--json"]) == 0
    statements = {each["code"]: each for each in json.loads(capsys.readouterr().out)["statements"]}
    assert statements["batch-size"]["figures"]["mean_rows"] == 4
    assert f"{address} is the HTTP port of this server" in statements["no-metrics"]["text"]


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(_PAGES) as address:
        assert command.main(["mm", f"--url=http://{address}/", f"--metrics-url={address}"]) == 1
    assert "did you mean 'm'?" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pages", "key", "text"),
    [(_PAGES, "k", "responds with 403: no"), ({"/v2/repository/index": "{"}, "", "is no JSON")],
    ids=["refused", "no JSON"],
)
def test_a_mesh_that_does_not_say(
    pages: dict[str, str], key: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(pages, key) as address:
        assert command.main(["m", f"--url={address}"]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--url=ftp://x", "--url=host:port", "--header=nothing"])
def test_usage(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(["m", flag])
    assert refused.value.code == 2
    assert "usage: nereid explain" in capsys.readouterr().err


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as address:
        pass
    assert command.main(["m", f"--url={address}"]) == 2
    assert "cannot be asked" in capsys.readouterr().err


_TWO = json.dumps(
    [{"name": "m", "version": number, "state": "READY", "reason": ""} for number in "12"]
)


def test_a_mesh_without_requests_is_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(_PAGES, key="k") as address:
        flags = [f"-u={address}", f"--metrics-url={address}", "-H=X-Key: k", "--seconds=0.01"]
        assert doctor.main([*flags, "-v"]) == 0
        shown = capsys.readouterr()
    assert shown.out == "1 version had no requests in these 0.0 s\n"
    assert f"nereid doctor: GET http://{address}/metrics" in shown.err
    # What has no requests is not asked for its configuration.
    assert "/config" not in shown.err


def test_versions_are_named_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    pages = {**_PAGES, "/v2/repository/index": _TWO}
    with serving(pages) as address:
        flags = [f"-u={address}", f"--metrics-url={address}", "--seconds=0.01"]
        assert doctor.main(flags) == 1
        text = capsys.readouterr().out
        assert doctor.main([*flags, "--json", "-m=m"]) == 1
        document = json.loads(capsys.readouterr().out)
    assert "m version 2: no instance is ready, 1 executors have joined" in text
    assert (document["format"], document["findings"]) == ("nereid.doctor/1", True)
    assert [len(each["diagnoses"]) for each in document["versions"]] == [0, 1]


@pytest.mark.parametrize(
    ("pages", "key", "flags", "text"),
    [
        (_PAGES, "", ["-m=mm"], "has a model 'mm': did you mean 'm'?"),
        (_PAGES, "", ["-m=m", "-m=unlike"], "has a model 'unlike'\n"),
        (_PAGES, "k", [], "is the HTTP port of this server"),
        ({**_PAGES, "/v2/repository/index": "{"}, "", [], "is no JSON"),
        ({}, "", [], "is the HTTP port of this server"),
    ],
    ids=["another model", "no such model", "refused", "no JSON", "no metrics"],
)
def test_a_mesh_that_cannot_be_diagnosed(
    pages: dict[str, str], key: str, flags: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(pages, key) as address:
        server = [f"-u={address}", f"--metrics-url={address}/metrics"]
        assert doctor.main([*server, "--seconds=0.01", *flags]) == 2
    assert text in capsys.readouterr().err


def test_an_interrupted_command_says_that_the_rollout_goes_on() -> None:
    page = (
        '{"to": 4, "steps": [1, 100], "every_seconds": 60, "if": "errors<1%", "step": 0,'
        ' "former": {"weights": {"3": 1}}, "state": "running", "reason": "", "rules": []}'
    )
    with serving({"/v2/repository/models/m/rollout": page}) as address:
        process = subprocess.Popen(
            [sys.executable, "-m", "nereid", "rollout", "m", "-u", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "m: version 4: running, 1%\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == (
        "nereid rollout: the mesh carries on with the rollout; --abort takes it back\n"
    )


def test_a_call_to_the_metrics_port_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    """It refuses calls without a text."""
    with serving({"/metrics": "# HELP x"}) as address:
        assert traffic.main(["m", "1=1", "-u", address]) == 2
    assert f"{address} is the metrics port of this server" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_window_without_a_length(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        doctor.main([f"--seconds={seconds}"])
    assert refused.value.code == 2
    assert "--seconds: expected more than 0" in capsys.readouterr().err
