"""Kubernetes accepts what the chart renders: each object against published schemas, strictly."""

from __future__ import annotations

import base64
import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest

from tests.support.chart.objects import WORKLOADS, labels, of_kind, pod_template, selects
from tests.support.chart.rendering import CHART, RELEASE, ROOT, Object, render
from tests.support.chart.value_sets import VALUE_SETS

# The first that the chart supports, and the three newest.
VERSIONS: Final = ("1.27", "1.35", "1.36", "1.37")
_NAME_LIMIT: Final = 63


@functools.cache
def validator(version: str, kind: str, api_version: str) -> Any:
    """Of the kind's objects, without unknown fields; None: the kind is not Kubernetes' own."""
    package = pytest.importorskip("kubernetes_validate")
    jsonschema = pytest.importorskip("jsonschema")
    folder = Path(package.__file__).parent / f"kubernetes-json-schema/v{version}.0-local-strict"
    group = api_version.replace(".k8s.io", "").replace("networking/", "networking-")
    path = folder / f"{kind}-{group.replace('/', '-')}.json".lower()
    if not path.exists():
        return None
    registry = _definitions(folder)
    return jsonschema.Draft202012Validator(json.loads(path.read_text()), registry=registry)


@functools.cache
def _definitions(folder: Path) -> Any:
    """Shared by all kinds of a version: reading them takes long."""
    referencing = pytest.importorskip("referencing")
    contents = json.loads((folder / "_definitions.json").read_text())
    resource = referencing.Resource.from_contents(contents)
    return referencing.Registry().with_resource("_definitions.json", resource).crawl()


@pytest.mark.parametrize("name", VALUE_SETS)
def test_objects_are_valid_in_every_version(name: str) -> None:
    foreign = set()
    for each in render(VALUE_SETS[name]):
        for version in VERSIONS:
            check = validator(version, each["kind"], each["apiVersion"])
            if check is None:
                foreign.add(each["apiVersion"].partition("/")[0])
            else:
                errors = [f"{e.json_path}: {e.message}" for e in check.iter_errors(each)]
                assert not errors, (version, each["kind"], each["metadata"]["name"])
    assert foreign <= {
        "cert-manager.io",
        "gateway.networking.k8s.io",
        "keda.sh",
        "monitoring.coreos.com",
    }


def test_the_validation_finds_a_field_that_does_not_exist() -> None:
    (first, *_) = of_kind(render(VALUE_SETS["least"]), "Deployment")
    first["spec"]["template"]["spec"]["restartPolicyy"] = "Always"
    check = validator(VERSIONS[-1], "Deployment", "apps/v1")
    assert [e.validator for e in check.iter_errors(first)] == ["additionalProperties"]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_names_and_references(name: str) -> None:
    objects = render(VALUE_SETS[name])
    identities = Counter((each["kind"], each["metadata"]["name"]) for each in objects)
    assert max(identities.values()) == 1
    assert all(len(each) <= _NAME_LIMIT for _, each in identities)
    certificates = of_kind(objects, "Certificate")
    made = {each["spec"]["secretName"] for each in certificates}
    made |= {name for kind, name in identities if kind == "Secret"}
    claims = {name for kind, name in identities if kind == "PersistentVolumeClaim"}
    for workload in of_kind(objects, *WORKLOADS):
        _check_pod(workload, made, claims)
    for service in of_kind(objects, "Service"):
        _check_service(service, objects)


def _check_pod(workload: Object, made: set[str], claims: set[str]) -> None:
    spec = pod_template(workload)["spec"]
    assert selects(workload["spec"]["selector"], labels(workload))
    volumes = [each["name"] for each in spec["volumes"]]
    assert len(set(volumes)) == len(volumes)
    mounted = [
        mount
        for container in (*spec["containers"], *spec.get("initContainers", []))
        for mount in container["volumeMounts"]
    ]
    # Nothing is there for nobody, and nobody asks for what is not there.
    assert {each["name"] for each in mounted} == set(volumes)
    used = {each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}
    assert {each for each in used if each.startswith(RELEASE)} <= made
    mounts = [
        each.get("persistentVolumeClaim", {}).get("claimName", "") for each in spec["volumes"]
    ]
    assert {each for each in mounts if each.startswith(RELEASE)} <= claims


def _check_service(service: Object, objects: list[Object]) -> None:
    selector = {"matchLabels": service["spec"]["selector"]}
    (workload,) = {
        json.dumps(each) for each in of_kind(objects, *WORKLOADS) if selects(selector, labels(each))
    }
    containers = pod_template(json.loads(workload))["spec"]["containers"]
    ports = {port["name"] for each in containers for port in each.get("ports", [])}
    assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports


def test_what_is_copied_from_an_object_store_has_a_place() -> None:
    objects = render(VALUE_SETS["object store"])
    for workload in of_kind(objects, *WORKLOADS):
        spec = pod_template(workload)["spec"]
        volumes = {each["name"]: each for each in spec["volumes"]}
        (container,) = spec["containers"]
        places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        environ = {each["name"]: each.get("value") for each in container.get("env", [])}
        # Schedulers read configurations alone, and keep nothing.
        copies = container["name"] == "executor"
        assert ("repository-cache-emptydir" in volumes) == copies
        assert ("/cache" in places.values()) == copies
        assert environ.get("XDG_CACHE_HOME") == places.get("repository-cache-emptydir")
        if container["name"] in ("scheduler", "executor"):
            assert environ["AWS_REGION"] == "eu-central-1"
        bounded = any(each.startswith("--repository-cache-bytes=") for each in container["args"])
        assert bounded == copies


def test_packages_of_python_models_have_a_place() -> None:
    (executor,) = [
        container
        for workload in of_kind(render(VALUE_SETS["least"]), *WORKLOADS)
        for container in pod_template(workload)["spec"]["containers"]
        if container["name"] == "executor"
    ]
    (directory,) = [e["value"] for e in executor["env"] if e["name"] == "XDG_CACHE_HOME"]
    assert directory in {each["mountPath"] for each in executor["volumeMounts"]}


@pytest.mark.parametrize(
    ("size", "expected"),
    [("110Gi", 99 << 30), ("20Gi", 18 << 30), ("1.5T", 1_350_000_000_000), ("5000", 4500)],
)
def test_executors_keep_less_than_would_have_their_pod_evicted(size: str, expected: int) -> None:
    values = VALUE_SETS["object store"]
    repository = {**values["modelRepository"], "cache": {"size": size}}
    objects = render({**values, "modelRepository": repository})
    (executor,) = (
        each for each in of_kind(objects, "Deployment") if each["metadata"]["name"].endswith("-cpu")
    )
    spec = pod_template(executor)["spec"]
    (volume,) = (each for each in spec["volumes"] if each["name"] == "repository-cache-emptydir")
    assert volume["emptyDir"]["sizeLimit"] == size
    assert f"--repository-cache-bytes={expected}" in spec["containers"][0]["args"]


@pytest.mark.parametrize("name", ["least", "watched"])
def test_an_upgrade_of_the_chart_alone_restarts_nothing(name: str) -> None:
    for workload in of_kind(render(VALUE_SETS[name]), *WORKLOADS):
        chart_labels = {"helm.sh/chart", "app.kubernetes.io/version"}
        assert not chart_labels & set(labels(workload))


def test_dashboards_are_the_repositorys() -> None:
    maps = of_kind(render(VALUE_SETS["watched"]), "ConfigMap")
    found = {name: text for each in maps for name, text in each["data"].items()}
    folder = ROOT / "deploy/grafana/dashboards"
    assert found == {path.name: path.read_text() for path in folder.glob("*.json")}


def test_the_chart_is_of_this_release() -> None:
    yaml = pytest.importorskip("yaml")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in project


def test_catalogues_have_what_they_show_of_a_chart() -> None:
    yaml = pytest.importorskip("yaml")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    for url in (chart["home"], *chart["sources"]):
        assert url.startswith("https://")
    kind, _, content = chart["icon"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert ET.fromstring(base64.b64decode(content)).tag.endswith("}svg")
    annotations = chart["annotations"]
    assert all(name.startswith("artifacthub.io/") for name in annotations)
    assert all(isinstance(text, str) for text in annotations.values())
    license_ = annotations["artifacthub.io/license"]
    assert f'\nlicense = "{license_}"\n' in (ROOT / "pyproject.toml").read_text()
    for each in yaml.safe_load(annotations["artifacthub.io/recommendations"]):
        assert each["url"].startswith("https://artifacthub.io/packages/helm/")


def test_helm_lints_it() -> None:
    helm = pytest.importorskip("helm_python")
    found = helm.lint(str(CHART), VALUE_SETS["least"])
    assert (found["messages"], found["errors"]) == ([], [])


def test_a_packaged_chart_has_the_dashboards(tmp_path: Path) -> None:
    helm = pytest.importorskip("helm_python")
    yaml = pytest.importorskip("yaml")
    helm.package(str(CHART), destination=str(tmp_path))
    (archive,) = tmp_path.glob("nereid-*.tgz")
    with helm.Chart.load(str(archive)) as chart:
        files = chart.render(VALUE_SETS["watched"], name="demo", namespace="prod")
    text = files["nereid/templates/monitoring/dashboards.yaml"]
    assert len([each for each in yaml.safe_load_all(text) if each]) >= 2
