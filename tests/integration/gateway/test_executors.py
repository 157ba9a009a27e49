"""Who may drain an executor, over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nereid_gateway.guards.auth.api_key import make_key
from tests.support.gateway.auth_config import HEALTH_FOR_ALL, key_entry
from tests.support.gateway.gateway_http import ask
from tests.support.gateway.gateway_site import gateway_site

DRAIN = "/v2/nereid/executors/executor-0/drain"
FULL, LOADER, NARROW, CALLER = make_key(), make_key(), make_key(), make_key()
CONFIG = (
    HEALTH_FOR_ALL
    + key_entry("full", FULL, "all")
    + key_entry("loader", LOADER, "model-repository", "console")
    + key_entry("narrow", NARROW, "all", more='models = ["ech?"]')
    + key_entry("caller", CALLER, "inference", "trace", "console")
)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": CALLER}, 403),
        # It executes all models.
        ({"x-api-key": NARROW}, 403),
        ({"x-api-key": LOADER}, 200),
        ({"x-api-key": FULL}, 200),
    ],
)
async def test_credentials(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    config = tmp_path / "auth.toml"
    config.write_text(CONFIG)
    async with gateway_site(auth_config=str(config), console=True) as site:
        response = await ask(site, "POST", DRAIN, b"", **headers)
        assert response.status == status
        assert all(each.authorized for each in site.scheduler.drains)
        assert (b"model-repository" in response.body) == (status == 403)
        assert site.scheduler.drained == (["executor-0"] if status == 200 else [])
        facts = await ask(site, "GET", "/console/facts", b"", **headers)
        if facts.status == 200:
            assert json.loads(facts.body)["permissions"]["may_drain"] == (status == 200)


async def test_it_is_restricted_and_closed_as_loads_are() -> None:
    async with gateway_site(http_restricted_api=("model-repository:key=secret",)) as site:
        assert (await ask(site, "POST", DRAIN)).status == 403
        assert (await ask(site, "POST", DRAIN, key="secret")).status == 200
        assert [each.authorized for each in site.scheduler.drains] == [True]
    async with gateway_site(open_control_apis=False, console=True) as site:
        assert b"--open-control-apis" in (await ask(site, "POST", DRAIN)).body
        assert not site.scheduler.drained
        facts = json.loads((await ask(site, "GET", "/console/facts")).body)
        assert not facts["permissions"]["may_drain"]


async def test_an_unknown_executor_is_not_found() -> None:
    async with gateway_site() as site:
        response = await ask(site, "POST", "/v2/nereid/executors/none/drain")
        assert (response.status, b"no executor 'none'" in response.body) == (404, True)
        assert (await ask(site, "GET", DRAIN)).status == 405
        assert not site.scheduler.drained


async def test_the_scheduler_learns_who_asks_and_whether_it_may_be_the_last(
    tmp_path: Path,
) -> None:
    config = tmp_path / "auth.toml"
    config.write_text('[anonymous]\nrights = ["all"]\n' + key_entry("full", FULL, "all"))
    for changes in ({}, {"auth_config": str(config)}):
        async with gateway_site(**changes) as site:
            for query in ("", "?allow_last=false", "?allow_last=true"):
                assert (await ask(site, "POST", DRAIN + query)).status == 200
            assert (await ask(site, "POST", DRAIN + "?allow_last=1")).status == 400
            assert [each.allow_last for each in site.scheduler.drains] == [False, False, True]
            assert not any(each.authorized for each in site.scheduler.drains)


@pytest.mark.parametrize("console", [False, True])
async def test_a_page_of_another_origin_cannot_drain(console: bool) -> None:
    async with gateway_site(console=console) as site:
        response = await ask(site, "POST", DRAIN, sec_fetch_site="cross-site")
        assert response.status == 403
        assert not site.scheduler.drained
