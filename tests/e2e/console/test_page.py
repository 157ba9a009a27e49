"""The console's page on documents of the test's: states that a mesh is seldom in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

import pytest

from tests.support.console.browser import Watched, opened, violations
from tests.support.console.facts_server import FactsServer, sample

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.browser]

HOSTILE = "<img src=x onerror=alert(1)>"
VIEWS = {
    "overview": "#/overview",
    "models": "#/models",
    "model": "#/model?name=mlp&version=1",
    "failed model": "#/model?name=broken",
    "hostile model": f"#/model?name={quote(HOSTILE)}",
    "executors": "#/executors",
    "schedulers": "#/schedulers",
    "slow requests": "#/slow",
    "events": "#/events",
    "request": "#/request?name=mlp&version=1",
    "no such model": "#/model?name=none",
}
TENSORS = {
    "input": [
        {"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]},
        {"name": "IDS", "data_type": "TYPE_INT64", "dims": ["-1"], "optional": True},
        {"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
    ],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4]}],
}


def document() -> dict[str, Any]:
    """The sample, whose model says what it takes."""
    made = sample()
    made["details"]["versions"]["1"]["effective"].update(deepcopy(TENSORS))
    return made


@pytest.fixture
def site() -> Iterator[FactsServer]:
    with FactsServer.running(document()) as site:
        yield site


@pytest.fixture
def watched(browser: Browser, site: FactsServer) -> Iterator[Watched]:
    with opened(browser, site.origin) as watched:
        yield watched


def go(page: Page, site: FactsServer, view: str) -> None:
    address = VIEWS.get(view, view)
    page.goto(f"{site.origin}/console{address}")
    kind, _, parameters = address.removeprefix("#/").partition("?")
    name = parse_qs(parameters).get("name", [""])[0]
    page.locator(f"main .view.{kind}", has=page.locator("h1", has_text=name)).wait_for()


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)])
def test_every_view_is_accessible_and_fits(
    browser: Browser, site: FactsServer, axe: str, theme: Any, width: int
) -> None:
    size: Any = {"width": width, "height": 800}
    with opened(browser, site.origin, viewport=size, color_scheme=theme) as watched:
        found = {}
        for name in VIEWS:
            go(watched.page, site, name)
            found[name] = violations(watched.page, axe)
            beyond = watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert beyond <= 0, f"{name} is wider than the page"
        assert {name: each for name, each in found.items() if each} == {}


def test_texts_of_models_are_never_markup(watched: Watched, site: FactsServer) -> None:
    script = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    made = site.document
    for row in made["models"]["rows"].values():
        row["reason"] = row["scheduler"] = script
        row["statements"][0].update(text=script, advice=script, problem=True)
    made["executors"]["executor-0"]["devices"][0]["tenants"][0]["model"] = script
    made["executors"]["executor-0"].update(
        name=script, title=script, host_name=script, backends=[script]
    )
    made["schedulers"]["scheduler-0"].update(name=script, host_name=script, owned=[script])
    for event in made["events"].values():
        event.update(subject=script, detail=script, cause=script, principal=script, what=script)
    made["details"]["steps"]["1"][0].update(model=script, version=script)
    made["slow_requests"][0].update(error=script, request_id=script, instance=script)
    made["server"].update(name=script, problems=[script])
    made["permissions"]["principal"] = script
    made["details"]["versions"]["1"]["differences"][0].update(field=script, declared=script)
    made["details"]["versions"]["1"]["effective"]["input"][0]["name"] = script
    made["details"]["batches"]["1"][0]["members"][0]["request_id"] = script
    made["details"]["diagnoses"]["1"][0].update(evidence=script, advice=script, remedy=script)
    for view in VIEWS:
        go(watched.page, site, view)
        assert watched.page.locator("main script, main img").count() == 0
        assert watched.page.evaluate("document.scripts.length") == 1
    # watched.check() at the end: no dialog came up, and the policy had nothing to refuse.


def test_causes_of_slowness_come_with_their_remedies(watched: Watched, site: FactsServer) -> None:
    go(watched.page, site, "#/model?name=mlp&version=1")
    slow = watched.page.get_by_role("region", name="Why it is slow")
    first, second = slow.get_by_role("listitem").all_inner_texts()
    assert "batches of 1 of 8, no batcher" in first
    assert "add dynamic_batching { }, up to x8; nereid analyze -m mlp measures it" in first
    assert second.endswith("unload models")
    site.document["details"]["diagnoses"] = {"1": []}
    site.publish()
    slow.wait_for(state="detached")


def test_a_name_that_is_markup_is_found_by_its_name(watched: Watched, site: FactsServer) -> None:
    go(watched.page, site, "models")
    watched.page.get_by_role("link", name=HOSTILE, exact=True).click()
    # The view changes once the browser says that the address has.
    watched.page.locator("main .view.model").wait_for()
    assert watched.page.locator("h1").inner_text() == HOSTILE
    assert "READY on demand" in watched.page.locator(".heading").inner_text()


def test_figures_are_updated_in_place(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "#/request?name=mlp&version=1")
    page.get_by_label("Values").fill("1, 2, 3, 4")
    page.get_by_label("Values").focus()
    page.evaluate("document.activeElement.setSelectionRange(2, 4)")
    site.document["server"]["name"] = "renamed"
    site.publish()
    page.locator("#mesh", has_text="renamed").wait_for()
    assert page.evaluate("document.activeElement.selectionStart") == 2
    assert page.get_by_label("Values").input_value() == "1, 2, 3, 4"
    page.get_by_role("link", name="Overview").click()
    page.get_by_text("412").wait_for()
    site.document["server"]["time_s"] += 1
    site.document["summary"]["requests_per_s"] = 517.0
    site.publish()
    page.get_by_text("517").wait_for()


def test_a_lost_connection_is_shown_and_made_again(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "overview")
    page.locator("#connection", has_text="Live").wait_for()
    site.refusal = (503, "too many consoles are open")
    site.drop()
    page.locator("#connection", has_text="Reconnecting").wait_for()
    # The last facts remain, with their time.
    assert page.get_by_text("412").is_visible()
    assert "as of" in page.locator("#connection").inner_text()
    assert "Connection: Reconnecting." in page.locator("#announcement").inner_text()
    site.refusal = None
    page.locator("#connection", has_text="Live").wait_for()


def test_a_key_is_asked_for_and_sent_to_this_origin_alone(
    watched: Watched, site: FactsServer
) -> None:
    page = watched.page
    site.refusal = (401, "this API needs credentials")
    page.goto(f"{site.origin}/console")
    page.get_by_role("heading", name="This mesh asks for a key").wait_for()
    site.refusal = None
    page.get_by_label("Key or token").fill("nereid_secret")
    page.get_by_role("button", name="Open the console").click()
    page.locator("main .view").wait_for()
    sent = [
        headers.get("authorization")
        for _, path, headers in site.requests
        if path.startswith("/console/stream")
    ]
    assert sent == [None, "Bearer nereid_secret"]
    assert page.evaluate("JSON.stringify(localStorage)") == "{}"
    assert "nereid_secret" not in page.content()
    # Nor in code that people copy.
    go(page, site, "request")
    assert "$NEREID_KEY" in page.locator("#code").inner_text()
    page.get_by_role("button", name="Forget key").click()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_viewer_without_rights_sees_no_button(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "model")
    assert page.get_by_role("button", name="Unload").is_visible()
    site.document["models"]["rows"]["mlp/1"]["may"] = []
    site.document["permissions"]["rights"] = ["console"]
    site.publish()
    page.get_by_role("button", name="Unload").wait_for(state="detached")
    assert page.locator("main").get_by_role("button").count() == 0
    assert page.get_by_role("link", name="Send a request").count() == 0
    go(page, site, "request")
    assert "may not send requests" in page.locator("main").inner_text()


def test_what_a_key_for_some_models_is_not_sent_is_not_shown(
    watched: Watched, site: FactsServer
) -> None:
    page, made = watched.page, site.document
    made["permissions"]["for_all_models"] = []
    for name in ("held", "waiting", "http", "grpc", "http_connections", "grpc_connections"):
        del made["summary"][name]
    for device in made["executors"]["executor-0"]["devices"]:
        device.pop("memory_used_bytes", None)
        device.pop("utilization", None)
        device.pop("power_watts", None)
    del made["cache"]
    for scheduler in made["schedulers"].values():
        scheduler.update(owned=[], models=0)
    go(page, site, "overview")
    text = page.locator("main").inner_text()
    assert "of the models that your key may see" in text
    assert not {"Response cache", "Responses of this gateway"} & {*text.split("\n")}
    for view, said in (("executors", "mlp"), ("schedulers", "no model that your key may see")):
        go(page, site, view)
        assert said in page.locator("main").inner_text()
        assert not re.search("undefined|NaN", page.locator("main").inner_text())


def test_events_are_shown_by_kind(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "events")
    assert [row.split("\t")[1].strip() for row in page.locator("tbody tr").all_inner_texts()] == [
        "executor lost",
        "load failed",
        "load",
    ]
    loaded = page.locator("tbody tr").last.inner_text().split()
    assert " ".join(loaded[3:-1]) == "v1 a client loads it; took 210 ms operators"
    page.get_by_role("link", name="Executors and schedulers 1").click()
    page.locator("tbody tr", has_text="broken").wait_for(state="detached")
    assert page.locator("tbody tr").all_inner_texts()[0].endswith("scheduler-1")
    page.get_by_role("link", name="Problems 2").click()
    page.locator("tbody tr", has_text="broken").wait_for()
    assert page.locator("tbody tr").count() == 2


def test_a_long_list_of_models_is_shown_when_asked_for(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    devices = site.document["executors"]["executor-0"]["devices"]
    tenant = devices[0]["tenants"][0]
    devices[0]["tenants"] = [{**tenant, "model": f"m{number}"} for number in range(30)]
    go(page, site, "executors")
    rows = page.get_by_role("table", name="Models on cpu of executor-0").locator("tbody tr")
    assert rows.count() == 20
    page.get_by_role("button", name="Show all 30").click()
    assert rows.count() == 30


def test_the_steps_of_an_ensemble_have_times(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "model")
    columns = [each.inner_text() for each in page.locator(".graph > li").all()]
    assert len(columns) == 3
    assert "tokenizer" in columns[0]
    assert "encoder v2" in columns[1]
    assert "9.80 ms" in columns[1]
    assert "No requests." in columns[1]
    assert "reads from 2, 3" in columns[2]
    assert not re.search("undefined|NaN", page.locator("main").inner_text())


def test_unload_asks_first(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "model")
    page.get_by_role("button", name="Unload").click()
    dialog = page.get_by_role("dialog", name="Unload mlp?")
    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="detached")
    assert not [path for method, path, _ in site.requests if method == "POST"]
    page.get_by_role("button", name="Unload").click()
    page.get_by_role("dialog").get_by_role("button", name="Unload").click()
    page.get_by_text("mlp is unloaded.").wait_for()
    posts = [path for method, path, _ in site.requests if method == "POST"]
    assert posts == ["/v2/repository/models/mlp/unload"]


def test_drain_asks_first_and_is_there_for_who_may(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "executors")
    button = page.get_by_role("button", name="Drain executor-0", exact=True)
    button.click()
    dialog = page.get_by_role("dialog", name="Drain executor-0?")
    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="detached")
    assert not [path for method, path, _ in site.requests if method == "POST"]
    button.click()
    dialog.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_text("executor-0 is leaving the mesh.").wait_for()
    posts = [path for method, path, _ in site.requests if method == "POST"]
    assert posts == ["/v2/nereid/executors/executor-0/drain"]
    site.document["permissions"]["may_drain"] = False
    site.publish()
    button.wait_for(state="detached")


def test_the_keyboard_is_enough(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "overview")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("g")
    page.keyboard.press("e")
    page.get_by_role("heading", name="Executors", exact=True).wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Executors"
    page.keyboard.press("/")
    page.locator("#search:focus").wait_for()
    page.keyboard.type("broken")
    page.get_by_text("1 of 5 versions").wait_for()
    assert page.locator("tbody tr").count() == 1
    assert page.locator("#search:focus").input_value() == "broken"
    page.get_by_role("link", name="broken", exact=True).press("?")
    page.get_by_role("dialog", name="Keyboard shortcuts").wait_for()
    page.get_by_label("Shortcuts are on").press("Space")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="broken", exact=True).press("g")
    page.keyboard.press("o")
    assert page.evaluate("location.hash").startswith("#/models")


def test_the_theme_is_the_readers(browser: Browser, site: FactsServer) -> None:
    with opened(browser, site.origin, color_scheme="light") as watched:
        page = watched.page
        go(page, site, "overview")
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.get_by_label("Theme").select_option("dark")
        assert page.evaluate(ground) != light
        page.reload()
        page.wait_for_selector("main .view")
        assert page.evaluate(ground) != light
        page.get_by_label("Theme").select_option("auto")
        assert page.evaluate(ground) == light


def test_wrong_inputs_say_what_to_write(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "request")
    page.get_by_label("Values").fill("1, 2, x, 4")
    page.get_by_text("x: no finite number").wait_for()
    assert "The inputs have errors." in page.locator("main").inner_text()
    page.get_by_label("Values").fill("1, 2")
    page.get_by_text("2 values, but the shape has 4").wait_for()
    page.get_by_label("Shape").fill("1, 5")
    page.get_by_text("dimension 2 is 4").wait_for()
    page.get_by_role("button", name="Send", exact=True).click()
    assert not [path for method, path, _ in site.requests if method == "POST"]


def test_a_pasted_request_fills_the_form(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "request")
    page.get_by_text("Fill in from JSON").click()
    body = (
        '{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2, 4],'
        ' "data": [[1, 2, 3, 4], [5, 6, 7, 8]]}, {"name": "IDS", "datatype": "INT64",'
        ' "shape": [2, 1], "data": [9223372036854775807, -1]}]}'
    )
    page.get_by_label("A request's body").fill(body)
    page.get_by_role("button", name="Fill in", exact=True).click()
    page.get_by_role("button", name="Send", exact=True).click()
    outcome = page.locator("#outcome")
    outcome.wait_for()
    assert "200" in outcome.inner_text()
    code = page.locator("#code").inner_text()
    assert '"shape":[2,4],"data":[1,2,3,4,5,6,7,8]' in code
    assert "9223372036854775807" in code
    page.get_by_label("A request's body").fill('{"inputs": [{"name": "other"}]}')
    page.get_by_role("button", name="Fill in", exact=True).click()
    page.get_by_text("the model has no input other").wait_for()


def test_the_clipboard_gets_the_code(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "request")
    for kind in ("curl", "Python", "Python, gRPC", "grpcurl"):
        page.locator(".segments").get_by_text(kind, exact=True).click()
        page.get_by_role("button", name="Copy the code").click()
        page.get_by_text("Copied the code.").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.strip() == page.locator("#code").inner_text().strip()
        assert re.match(r"curl |import numpy|grpcurl ", copied)


def test_the_timeline_is_saved(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "slow requests")
    # Not for everybody: it has all models' requests.
    assert page.get_by_role("button", name="Save the timeline").count() == 0
    site.document["permissions"]["for_all_models"] = ["trace"]
    site.publish()
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save the timeline").click()
    assert saving.value.suggested_filename == "nereid-timeline.raw"
    assert saving.value.path().read_bytes() == b"timeline"
    page.get_by_text("nereid timeline nereid-timeline.raw -o trace.pftrace").wait_for()


def test_a_slow_request_leads_to_its_own_timeline(watched: Watched, site: FactsServer) -> None:
    page = watched.page
    go(page, site, "slow requests")
    own = page.get_by_role("button", name="Its timeline")
    assert own.count() == 0
    site.document["permissions"]["for_all_models"] = ["trace"]
    site.publish()
    own.click()
    page.get_by_role("button", name="Copy the request's command").click()
    page.get_by_text("Copied the request's command.").wait_for()
    command = (
        f"nereid timeline --url={site.origin} --request=9223372036854775809 -o request.pftrace"
    )
    assert page.evaluate("navigator.clipboard.readText()") == command
    with page.expect_download():
        page.get_by_role("button", name="Save the timeline").click()
    page.get_by_text("nereid timeline nereid-timeline.raw --request=9223372036854775809").wait_for()
    site.document["server"]["timeline_seconds"] = 0.0
    site.publish()
    page.get_by_label("The command for this request").wait_for(state="detached")
    assert own.count() == 0
