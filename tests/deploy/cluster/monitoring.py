"""What a Prometheus operator makes of the chart's PodMonitor and PrometheusRules, and what the
Prometheus says to every panel of the chart's dashboards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.deploy.cluster.pod import Pod
from tests.support.chart.objects import of_kind, selects
from tests.support.chart.rendering import NAMESPACE, RELEASE, Object
from tests.support.peers.prometheus import Prometheus, panels
from tests.support.waiting import until

# Panels that stay empty: there is no GPU, no model that generates, and no traffic by weights.
DARK: Final = {
    "GPU utilization",
    "OpenAI's API: calls",
    "OpenAI's API: time per output token",
    "OpenAI's API: time to first token",
    "OpenAI's API: tokens per second",
    "Rollout",
    "Shadow: compared and different",
    "Shadow: not compared",
    "Weights of versions",
}
_META: Final = "__meta_kubernetes"
# Rates are of the last minute.
_PATIENCE_S: Final = 90.0


class Monitoring:
    """A Prometheus that finds pods as the operator has it find them."""

    def __init__(self, objects: list[Object], folder: Path) -> None:
        folder.mkdir()
        (monitor,) = (each["spec"] for each in of_kind(objects, "PodMonitor"))
        (self._endpoint,) = monitor["podMetricsEndpoints"]
        self._selector = monitor["selector"]
        self._targets = folder / "targets.json"
        self._targets.write_text("[]")
        self._dashboards = [
            json.loads(text)
            for each in of_kind(objects, "ConfigMap")
            for text in each["data"].values()
        ]
        rules = of_kind(objects, "PrometheusRule")
        for number, each in enumerate(rules):
            (folder / f"rules-{number}.yml").write_text(json.dumps(each["spec"]))
        relabelings = [
            {"source_labels": [f"{_META}_namespace"], "target_label": "namespace"},
            {"source_labels": [f"{_META}_pod_name"], "target_label": "pod"},
            {"source_labels": [_label(monitor["jobLabel"])], "target_label": "job"},
            *(
                {"source_labels": each["sourceLabels"], "target_label": each["targetLabel"]}
                for each in self._endpoint["relabelings"]
            ),
        ]
        settings = {
            "global": {"evaluation_interval": "2s"},
            "rule_files": ["rules-*.yml"],
            "scrape_configs": [
                {
                    "job_name": "pods",
                    "metrics_path": self._endpoint["path"],
                    "scrape_interval": self._endpoint["interval"],
                    "scrape_timeout": self._endpoint["interval"],
                    "file_sd_configs": [{"files": [str(self._targets)], "refresh_interval": "1s"}],
                    "relabel_configs": relabelings,
                }
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(settings))
        self._log = folder / "prometheus.log"
        self._prometheus = Prometheus(folder / "prometheus.yml", folder / "data", "127.0.0.1:9090")

    async def run(self, pods: list[Pod]) -> None:
        """Scrape the pods that there are, until cancelled."""
        with self._log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self._prometheus.argv, stdout=log, stderr=log
            )
        try:
            while True:
                self._write_targets(pods)
                await asyncio.sleep(0.5)
        finally:
            process.kill()
            await process.wait()

    def _write_targets(self, pods: list[Pod]) -> None:
        targets = []
        for pod in pods:
            ports = {each["name"] for each in pod.container["ports"]}
            if pod.is_over or self._endpoint["port"] not in ports:
                continue
            if selects(self._selector, pod.labels):
                labels = {_label(key): value for key, value in pod.labels.items()}
                labels |= {f"{_META}_namespace": NAMESPACE, f"{_META}_pod_name": pod.name}
                address = f"{pod.host.address}:{pod.port(self._endpoint['port'])}"
                targets.append({"targets": [address], "labels": labels})
        text = json.dumps(targets)
        if text != self._targets.read_text():
            new = self._targets.with_suffix(".new")
            new.write_text(text)
            new.replace(self._targets)

    async def report(self, model: str, fail: Callable[[], None]) -> dict[str, Any]:
        """Which panels show nothing, which rules fail, which alerts have fired.

        fail: called for failures that can be shown.
        """
        empty = set(panels(self._dashboards, model, NAMESPACE, RELEASE))
        count = len(empty)

        async def show_something() -> bool:
            await asyncio.to_thread(fail)
            for each in list(empty):
                if await asyncio.to_thread(self._prometheus.shows, each[1]):
                    empty.remove(each)
            return {title for title, _ in empty} <= DARK

        with contextlib.suppress(TimeoutError):
            await until(show_something, _PATIENCE_S)
        rules = await asyncio.to_thread(self._prometheus.rules)
        fired = await asyncio.to_thread(
            self._prometheus.get, "query", query='last_over_time(ALERTS{alertstate="firing"}[1h])'
        )
        return {
            "panels": count,
            "empty": sorted({title for title, _ in empty}),
            "rules": len(rules),
            "unhealthy": [each["name"] for each in rules if each["health"] != "ok"],
            "fired": [each["metric"] for each in fired["result"]],
        }


def _label(key: str) -> str:
    """By which service discovery knows a pod's label."""
    return f"{_META}_pod_label_{re.sub('[^a-zA-Z0-9_]', '_', key)}"
