"""Questions to rendered Kubernetes objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.support.chart.rendering import Object

WORKLOADS: Final = ("Deployment", "StatefulSet")
COMPONENT: Final = "app.kubernetes.io/component"


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (each for each in of_kind(objects, kind) if each["metadata"]["name"] == name)
    return found


def pod_template(workload: Object) -> Object:
    template: Object = workload["spec"]["template"]
    return template


def labels(workload: Object) -> dict[str, str]:
    """Return the labels of the workload's pods."""
    found: dict[str, str] = pod_template(workload)["metadata"]["labels"]
    return found


def component(workload: Object) -> str:
    return labels(workload)[COMPONENT]


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Names and pod specs of workloads, and of pods that have none."""
    for each in of_kind(objects, *WORKLOADS):
        yield each["metadata"]["name"], pod_template(each)["spec"]
    for each in of_kind(objects, "Pod"):
        yield each["metadata"]["name"], each["spec"]


class Container(NamedTuple):
    """A container and whose it is."""

    workload: Object
    container: Object
    is_init: bool

    @property
    def is_sidecar(self) -> bool:
        """The values' own: the chart's are named after their components."""
        return not self.is_init and self.container["name"] != component(self.workload)

    @property
    def where(self) -> str:
        return f"{self.workload['metadata']['name']}/{self.container['name']}"


def containers(objects: list[Object]) -> Iterator[Container]:
    """All containers, init containers as well."""
    for workload in of_kind(objects, *WORKLOADS):
        spec = pod_template(workload)["spec"]
        for each in spec.get("initContainers", []):
            yield Container(workload, each, is_init=True)
        for each in spec["containers"]:
            yield Container(workload, each, is_init=False)


def selects(selector: Object, pod_labels: dict[str, str]) -> bool:
    """Return whether a label selector with matchLabels alone applies."""
    assert set(selector) <= {"matchLabels"}, selector
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= pod_labels.items()
