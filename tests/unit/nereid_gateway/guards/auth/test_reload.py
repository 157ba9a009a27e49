"""Changes of the files are found; a configuration that cannot be used changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nereid_gateway.guards.auth.reload import LoadedConfig, load_config, watch_config
from tests.support.waiting import until

KEY = '[[keys]]\nname = "{}"\nsha256 = "{}"\nrights = ["inference"]\n'
SECRET = """
[[issuers]]
issuer = "a"
audience = "b"
algorithms = ["HS256"]
secret_file = "secret"
"""


class Site:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("one")
        self.changes: asyncio.Queue[LoadedConfig] = asyncio.Queue()
        self.watch = watch_config(
            str(path), load_config(str(path)), self.changes.put_nowait, interval_s=0.01
        )

    def write(self, name: str, more: str = "") -> None:
        self.path.write_text(KEY.format(name, "a" * 64) + more)

    async def next_name(self) -> str:
        loaded = await asyncio.wait_for(self.changes.get(), 10)
        return loaded.config.keys[0].name


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path / "auth.toml")
    made.watch.start()
    yield made
    await made.watch.close()


async def test_a_change_is_applied_once(site: Site) -> None:
    site.write("longer")
    assert await site.next_name() == "longer"
    site.path.unlink()
    site.write("another")
    assert await site.next_name() == "another"
    assert site.changes.empty()


async def test_a_bad_file_is_logged_once_and_changes_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.path.write_text("keys = [")
    await until(lambda: caplog.records)
    site.write("mended")
    assert await site.next_name() == "mended"
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "keeping the previous configuration: not TOML" in errors[0].getMessage()


async def test_changed_keys_of_an_issuer_are_read(site: Site) -> None:
    secret = site.path.parent / "secret"
    # First it cannot be used: the file it names is not there yet.
    site.write("with issuer", SECRET)
    secret.write_text("s" * 32)
    assert await site.next_name() == "with issuer"
    secret.write_text("t" * 40)
    assert await site.next_name() == "with issuer"
