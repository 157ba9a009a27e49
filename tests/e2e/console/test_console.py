"""The console of a real mesh, in a browser."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import grpc
import pytest
from google.protobuf import json_format

from nereid.pb import kserve_pb2
from nereid_gateway.guards.auth.api_key import make_key
from tests.support.console.browser import opened, violations
from tests.support.console.traffic import traffic
from tests.support.gateway.auth_config import HEALTH_FOR_ALL, key_entry
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import make_repository, save_echo

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.slow, pytest.mark.browser]

# What a shell could mistake for something else. A browser's URL can have the first as it is, curl
# the second as well, and none the third.
SHELL_NAME = "it's$(touch$IFS'pwned')&;*[a]!~"
CURL_NAME = '|^`id`"<b>{a,b}%41'
MARKUP_NAME = "<img src=x onerror=alert(1)>"
_PYTHON_ERROR = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("<script>alert('error')</script> refused")
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""
_WAITS = """
import time

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(3)
        return []
"""
# As many responses as the first number says; of 0 none, and no end before the next request.
_COUNTS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.senders = []

    def execute(self, requests):
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            sender = request.get_response_sender()
            if not numbers.flat[0]:
                self.senders.append(sender)
                continue
            for kept in self.senders:
                kept.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            self.senders.clear()
            for number in range(int(numbers.flat[0])):
                output = pb_utils.Tensor("OUTPUT0", numbers + number)
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_FAILS_TO_LOAD = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("<script>alert('reason')</script> out of paper")

    def execute(self, requests):
        return []
"""


def save_python(root: Path, name: str, source: str) -> None:
    save_echo(root, name)
    config = root / name / "config.pbtxt"
    config.write_text(config.read_text().replace('"identity"', '"python"'))
    (root / name / "1" / "model.py").write_text(source)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = make_repository(tmp_path_factory.mktemp("repository"))
    save_python(root, "refuses", _PYTHON_ERROR)
    save_python(root, "fails", _FAILS_TO_LOAD)
    save_python(root, "waits", _WAITS)
    save_python(root, "counts", _COUNTS)
    with (root / "counts" / "config.pbtxt").open("a") as config:
        config.write("\nmodel_transaction_policy { decoupled: true }\n")
    for name in (SHELL_NAME, CURL_NAME, MARKUP_NAME):
        save_echo(root, name)
    log = tmp_path_factory.mktemp("mesh") / "log"
    flags = ("--console", "--model-control-mode=explicit", "--load-model=*")
    with running(root, log, *flags) as mesh:
        yield mesh


@pytest.fixture
def page(browser: Browser, mesh: Mesh) -> Iterator[Page]:
    with opened(browser, f"http://{mesh.http}") as watched:
        yield watched.page


def go(page: Page, mesh: Mesh, address: str) -> None:
    page.goto(f"http://{mesh.http}/console{address}")
    page.locator("main .view").wait_for()


def model_address(name: str, view: str = "model") -> str:
    return f"#/{view}?name={quote(name)}"


def test_a_model_that_fails_to_load_says_why(page: Page, mesh: Mesh) -> None:
    go(page, mesh, "")
    attention = page.get_by_role("region", name="Needs attention")
    attention.get_by_role("link", name="broken", exact=True).wait_for()
    attention.get_by_role("link", name="fails", exact=True).click()
    page.locator("h1", has_text="fails").wait_for()
    explained = page.get_by_role("region", name="Explained")
    explained.get_by_text("<script>alert('reason')</script> out of paper").wait_for()
    assert "UNAVAILABLE" in page.locator(".heading").inner_text()


def test_load_under_traffic_is_drawn(page: Page, mesh: Mesh) -> None:
    with traffic(mesh, ["doubler"], ["doubler"]):
        go(page, mesh, model_address("doubler"))
        rate = figure(page, "Requests")
        until_text(rate, lambda text: float(text.replace(",", "")) > 0)
        page.get_by_role("region", name="Mean latency by phase").get_by_text(
            "Inference", exact=True
        ).wait_for()
        closed = page.get_by_role("region", name="Why batches closed")
        closed.get_by_role("row").first.wait_for()
        page.get_by_role("region", name="Batch sizes").get_by_role("row").first.wait_for()
        page.get_by_role("link", name="Overview").click()
        rate = figure(page, "Requests")
        until_text(rate, lambda text: float(text.replace(",", "")) > 0)
        page.get_by_role("region", name="Responses of this gateway").get_by_text("200").wait_for()
        page.get_by_role("link", name="Slow requests").click()
        page.locator(".slowest").get_by_role("link", name="doubler").first.wait_for()


def test_who_is_in_a_batch(page: Page, mesh: Mesh) -> None:
    go(page, mesh, model_address("waits"))
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [2, 1], "data": [1, 2]}
    body = json.dumps({"id": "order <17>", "inputs": [tensor]}).encode()
    sender = threading.Thread(target=mesh.get, args=("/v2/models/waits/infer", "POST", body))
    sender.start()
    try:
        page.locator(".batch", has_text="2 rows").locator("summary").click()
        page.locator(".batch").get_by_role("rowheader", name="order <17>").wait_for()
    finally:
        sender.join()
    # Once it is over, it can still be read.
    page.get_by_text("The last that this page saw").wait_for()
    assert page.locator(".batch").get_by_role("rowheader", name="order <17>").is_visible()


def figure(page: Page, name: str) -> Locator:
    heading = page.get_by_role("heading", name=name, exact=True)
    return page.locator(".tile", has=heading).locator("b")


def until_text(locator: Locator, condition: Callable[[str], bool]) -> None:
    def fulfilled() -> bool:
        with contextlib.suppress(ValueError):
            return condition(locator.inner_text())
        return False

    until(fulfilled, "the page to say so", 20.0)


def test_the_configuration_in_effect_is_compared(page: Page, mesh: Mesh) -> None:
    go(page, mesh, model_address("doubler"))
    config = page.get_by_role("region", name="Configuration", exact=True)
    row = config.get_by_role("row", name=re.compile("data_type"))
    row.first.wait_for()
    assert "TYPE_FP32" in row.first.inner_text()
    assert "not given" in row.first.inner_text()


def test_an_executor_that_ends_disappears(browser: Browser, tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repository", ["FP32"])
    with (
        running(root, tmp_path / "log", "--console", executors=2) as mesh,
        opened(browser, f"http://{mesh.http}") as watched,
    ):
        page = watched.page
        go(page, mesh, "#/executors")
        names = page.locator("main section h2")
        until(lambda: names.count() == 2, "two executors")
        # Who would start it again at once.
        os.kill(mesh.process.pid, signal.SIGSTOP)
        try:
            os.kill(mesh.children("nereid_executor")[0], signal.SIGKILL)
            until(lambda: names.count() == 1, "one executor")
        finally:
            os.kill(mesh.process.pid, signal.SIGCONT)
        until(lambda: names.count() == 2, "the next one")


def test_a_scheduler_is_taken_over(browser: Browser, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    for number in range(6):
        save_echo(root, f"echo_{number}")
    flags = ("--console", "--schedulers=2")
    with (
        running(root, tmp_path / "log", *flags) as mesh,
        opened(browser, f"http://{mesh.http}") as watched,
    ):
        page = watched.page
        go(page, mesh, "#/schedulers")
        until(lambda: page.locator("main section").count() == 2, "two schedulers")
        owned = page.locator("main section .names li")
        until(lambda: owned.count() == 6, "the models of both")
        pid = mesh.children("nereid_scheduler")[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            bad = page.locator("main section", has=page.locator(".badge.bad"))
            other = page.locator("main section", has=page.locator(".badge.good"))
            until(
                lambda: (
                    bad.count() + other.count() >= 1 and other.locator(".names li").count() == 6
                ),
                "one to own all of them",
            )
        finally:
            os.kill(pid, signal.SIGCONT)


def send(page: Page, mesh: Mesh, name: str, shape: str, values: str, outcome: str = "200") -> None:
    """By the form, until the outcome is there."""
    go(page, mesh, model_address(name, "request"))
    page.get_by_label("Shape").fill(shape)
    page.get_by_label("Values").fill(values)
    page.get_by_role("button", name="Send", exact=True).click()
    page.locator("#outcome", has_text=outcome).wait_for()


def test_what_an_input_changes_is_shown_before_the_next_input(page: Page, mesh: Mesh) -> None:
    go(page, mesh, model_address("identity_fp32", "request"))
    page.get_by_label("Shape").wait_for()
    values: str = page.evaluate("""() => {
        const shape = document.querySelector("fieldset input");
        shape.value = "1, 5";
        shape.dispatchEvent(new Event("input", { bubbles: true }));
        return document.querySelector("fieldset textarea").value;
    }""")
    assert len(values.split(",")) == 5


def copied_code(page: Page, kind: str) -> str:
    page.locator(".segments").get_by_text(kind, exact=True).click()
    page.get_by_role("button", name="Copy the code").click()
    page.get_by_text("Copied the code.").wait_for()
    code: str = page.evaluate("navigator.clipboard.readText()")
    return code


def test_the_copied_curl_does_what_the_form_did(page: Page, mesh: Mesh, tmp_path: Path) -> None:
    values = ['it\'s "$HOME" `id` \\ %41 {a,b} !!', "</script><b>", "é€😀", "-d @/etc/passwd"]
    send(page, mesh, "identity_bytes", f"1, {len(values)}", json.dumps(values))
    shown = page.get_by_role("region", name="Outputs").locator(".values").inner_text()
    assert json.loads(f"[{shown}]") == values
    assert page.locator("#timings").count() == 1
    code = copied_code(page, "curl")
    for shell in ("sh", "bash"):
        ran = subprocess.run(
            [shell, "-c", code], capture_output=True, cwd=tmp_path, timeout=30, check=True
        )
        (output,) = json.loads(ran.stdout)["outputs"]
        assert output["data"] == values


def test_names_that_a_shell_would_run_are_quoted(page: Page, mesh: Mesh, tmp_path: Path) -> None:
    send(page, mesh, SHELL_NAME, "1, 2", "1.5, 2.5")
    code = copied_code(page, "curl")
    ran = subprocess.run(
        ["bash", "-c", code], capture_output=True, cwd=tmp_path, timeout=30, check=True
    )
    response = json.loads(ran.stdout)
    assert response["model_name"] == SHELL_NAME
    assert response["outputs"][0]["data"] == [1.5, 2.5]
    go(page, mesh, model_address(CURL_NAME, "request"))
    page.get_by_label("Values").fill("7")
    ran = subprocess.run(
        ["sh", "-c", copied_code(page, "curl")],
        capture_output=True,
        cwd=tmp_path,
        timeout=30,
        check=True,
    )
    assert json.loads(ran.stdout)["model_name"] == CURL_NAME
    assert list(tmp_path.iterdir()) == []


def test_the_copied_programs_do_as_well(page: Page, mesh: Mesh, tmp_path: Path) -> None:
    send(page, mesh, "identity_fp32", "1, 1", "1.5")
    for kind in ("Python", "Python, gRPC"):
        ran = subprocess.run(
            [sys.executable, "-c", copied_code(page, kind)],
            capture_output=True,
            cwd=tmp_path,
            timeout=60,
            check=True,
        )
        assert b"1.5" in ran.stdout
    # A shell in which grpcurl prints its arguments: what it would send, this client does.
    words = shell_words(copied_code(page, "grpcurl"), tmp_path)
    assert words[0] == "-plaintext"
    message = json_format.Parse(words[words.index("-d") + 1], kserve_pb2.ModelInferRequest())
    assert words[-1] == "inference.GRPCInferenceService/ModelInfer"
    assert infer(words[-2], message).raw_output_contents == [b"\x00\x00\xc0\x3f"]


def test_a_name_that_urls_quote_is_called_over_both(page: Page, mesh: Mesh, tmp_path: Path) -> None:
    go(page, mesh, model_address(MARKUP_NAME, "request"))
    page.get_by_label("Values").fill("7")
    code = copied_code(page, "curl")
    ran = subprocess.run(["bash", "-c", code], capture_output=True, timeout=30, check=True)
    assert json.loads(ran.stdout)["model_name"] == MARKUP_NAME
    words = shell_words(copied_code(page, "grpcurl"), tmp_path)
    message = json_format.Parse(words[words.index("-d") + 1], kserve_pb2.ModelInferRequest())
    assert infer(words[-2], message).model_name == MARKUP_NAME


def shell_words(code: str, folder: Path) -> list[str]:
    script = 'grpcurl() { printf "%s\\0" "$@"; }\n'
    ran = subprocess.run(
        ["bash", "-c", script + code], capture_output=True, cwd=folder, timeout=30, check=True
    )
    return ran.stdout.decode().split("\0")[:-1]


def infer(address: str, message: kserve_pb2.ModelInferRequest) -> kserve_pb2.ModelInferResponse:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            kserve_pb2.ModelInferRequest.SerializeToString,
            kserve_pb2.ModelInferResponse.FromString,
        )
        response: kserve_pb2.ModelInferResponse = call(message, timeout=20)
        return response


def test_an_error_of_a_model_is_text(page: Page, mesh: Mesh) -> None:
    send(page, mesh, "refuses", "1, 1", "1", outcome="500")
    assert "<script>alert('error')</script> refused" in page.locator("main").inner_text()


def test_a_decoupled_models_responses_are_shown(page: Page, mesh: Mesh) -> None:
    send(page, mesh, "counts", "1, 3", "3, 1, 2", outcome="3 responses")
    found = page.get_by_role("region", name="Responses").locator(".values").all_inner_texts()
    assert [json.loads(each)["OUTPUT0"] for each in found] == [[3, 1, 2], [4, 2, 3], [5, 3, 4]]
    code = copied_code(page, "curl")
    ran = subprocess.run(["sh", "-c", code], capture_output=True, timeout=30, check=True)
    assert ran.stdout.count(b"data: ") == 3
    # A page takes so many.
    page.get_by_label("Values").fill("5000, 1, 2")
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_text("a page takes no more").wait_for()
    assert page.get_by_role("region", name="Responses").locator(".values").count() == 100
    # One without an end is stopped.
    page.get_by_label("Values").fill("0, 1, 2")
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_text("Stopped.", exact=True).wait_for()
    page.get_by_role("button", name="Send", exact=True).wait_for()
    # The model lets go of it: a drain would wait for its end.
    send(page, mesh, "counts", "1, 3", "1, 1, 2", outcome="1 response")


def test_a_model_is_unloaded_and_loaded(page: Page, mesh: Mesh) -> None:
    go(page, mesh, model_address("partial"))
    page.get_by_role("button", name="Unload").click()
    page.get_by_role("dialog").get_by_role("button", name="Unload").click()
    page.locator(".heading", has_text="UNAVAILABLE").wait_for()
    assert mesh.index()["partial"]["state"] == "UNAVAILABLE"
    page.get_by_role("button", name="Load", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Load", exact=True).click()
    page.locator(".heading", has_text="READY").wait_for()
    assert mesh.index()["partial"]["state"] == "READY"


def test_an_executor_is_drained_and_comes_back(page: Page, mesh: Mesh) -> None:
    module = "nereid_executor"
    (before,) = mesh.children(module)
    go(page, mesh, "#/executors")
    page.get_by_role("button", name="Drain executor-0", exact=True).click()
    drain = page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True)
    drain.click()
    page.get_by_text("Drain executor-0, the last one?").wait_for()
    drain.click()
    page.get_by_text("executor-0 is leaving the mesh.").wait_for()
    until(lambda: set(mesh.children(module)) - {before}, "its next process")
    page.get_by_role("region", name="executor-0").get_by_role("link", name="doubler").wait_for()
    assert mesh.index()["doubler"]["state"] == "READY"


def is_ready(mesh: Mesh) -> bool:
    with contextlib.suppress(OSError):
        return mesh.get("/v2/health/ready")[0] == 200
    return False


def test_a_viewer_without_rights(browser: Browser, tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repository", ["FP32"])
    keys = {name: make_key() for name in ("viewer", "caller", "operator")}
    config = (
        HEALTH_FOR_ALL
        + key_entry("viewer", keys["viewer"], "console", "metadata")
        + key_entry("caller", keys["caller"], "inference")
        + key_entry("operator", keys["operator"], "all")
    )
    (tmp_path / "auth.toml").write_text(config)
    flags = ("--console", f"--auth-config={tmp_path / 'auth.toml'}")
    mesh = Mesh(root, tmp_path / "log", *flags, "--model-control-mode=explicit")
    with contextlib.ExitStack() as stack:
        stack.callback(mesh.terminate)
        until(lambda: is_ready(mesh), "the mesh to be ready")
        page = stack.enter_context(opened(browser, f"http://{mesh.http}")).page
        page.goto(f"http://{mesh.http}/console{model_address('doubler')}")
        page.get_by_role("heading", name="This mesh asks for a key").wait_for()
        page.get_by_label("Key or token").fill(keys["caller"])
        page.get_by_role("button", name="Open the console").click()
        page.get_by_role("heading", name="Your key may not see the console").wait_for()
        page.get_by_label("Key or token").fill(keys["viewer"])
        page.get_by_role("button", name="Open the console").click()
        page.locator(".heading").wait_for()
        assert page.locator("main").get_by_role("button").count() == 0
        page.get_by_role("button", name="Forget key").click()
        page.get_by_label("Key or token").fill(keys["operator"])
        page.get_by_role("button", name="Open the console").click()
        page.get_by_role("button", name="Load", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Load", exact=True).click()
        page.locator(".heading", has_text="READY").wait_for()
        page.get_by_role("link", name="Send a request").click()
        page.get_by_role("button", name="Send", exact=True).click()
        page.locator("#outcome", has_text="200").wait_for()
        code = copied_code(page, "curl")
        assert keys["operator"] not in code
        environment = {**os.environ, "NEREID_KEY": keys["operator"]}
        ran = subprocess.run(
            ["sh", "-c", code], capture_output=True, env=environment, timeout=30, check=True
        )
        assert json.loads(ran.stdout)["model_name"] == "doubler"


def test_ten_thousand_models_are_paged(browser: Browser, tmp_path: Path, axe: str) -> None:
    root = tmp_path / "repository"
    for number in range(10_000):
        (root / f"model_{number:05}" / "1").mkdir(parents=True)
    save_echo(root, "echo")
    flags = ("--console", "--model-control-mode=explicit", "--load-model=echo")
    with (
        running(root, tmp_path / "log", *flags) as mesh,
        opened(browser, f"http://{mesh.http}") as watched,
    ):
        page = watched.page
        go(page, mesh, "#/models")
        page.get_by_text("10,001 versions").wait_for()
        # As much of a page as with fifty.
        assert page.locator("main tbody tr").count() == 50
        assert page.evaluate("document.querySelectorAll('*').length") < 2000
        page.get_by_role("link", name="Last", exact=True).click()
        page.get_by_role("link", name="model_09999", exact=True).wait_for()
        page.get_by_label("Search by name").fill("4242")
        page.get_by_role("link", name="model_04242", exact=True).wait_for()
        assert page.locator("main tbody tr").count() == 1
        assert violations(page, axe) == []
