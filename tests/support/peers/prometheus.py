"""A real Prometheus, asked what Grafana's panels would ask it."""

from __future__ import annotations

import contextlib
import json
import math
import re
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.mesh.mesh import ask


class Prometheus:
    """A Prometheus that a test starts by its command line."""

    def __init__(self, settings: Path, data: Path, address: str) -> None:
        self.address = address
        self.argv = [
            "prometheus",
            f"--config.file={settings}",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address={address}",
            "--log.level=warn",
            "--enable-feature=exemplar-storage",
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
        """Return whether there is a number."""
        found = self.get("query", query=query)["result"]
        return any(not math.isnan(float(series["value"][1])) for series in found)

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with what became of their evaluation."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]


def substitute(query: str, model: str, namespace: str = ".*", release: str = ".*") -> str:
    """A query of a dashboard's, as Grafana sends it with these of its variables."""
    chosen = {"model": model, "namespace": namespace, "release": release, "__rate_interval": "1m"}
    return re.sub(r"\$(\w+)", lambda name: chosen[name[1]], query)


def panels(
    dashboards: Iterable[dict[str, Any]], model: str, namespace: str = ".*", release: str = ".*"
) -> Iterator[tuple[str, str]]:
    """Title and query, as Grafana would send it."""
    for dashboard in dashboards:
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield panel["title"], substitute(target["expr"], model, namespace, release)
