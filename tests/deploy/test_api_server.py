"""The chart and the KServe files on a real API server, which validates, fills in defaults, and
refuses to change what cannot be changed. Helm installs and upgrades there as it does for users.

Nothing of a cluster runs but the API server: its objects are kept, and no pod starts.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.chart.objects import WORKLOADS, named
from tests.support.chart.older_servers import chart_for
from tests.support.chart.rendering import ROOT, Object, render
from tests.support.chart.value_sets import VALUE_SETS
from tests.support.peers.api_server import ApiError, ApiServer, api_server, binaries

# Their schemas are in test_foreign_kinds.py; here whatever is in their spec is taken.
_FOREIGN: Final = {
    "cert-manager.io/v1": ("Certificate", "Issuer"),
    "gateway.networking.k8s.io/v1": ("BackendTLSPolicy", "GRPCRoute", "HTTPRoute"),
    "keda.sh/v1alpha1": ("ScaledObject",),
    "monitoring.coreos.com/v1": ("PodMonitor", "PrometheusRule"),
    "serving.kserve.io/v1alpha1": ("ServingRuntime", "ClusterServingRuntime"),
    "serving.kserve.io/v1beta1": ("InferenceService",),
}
_TOKEN: Final = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "demo-nereid-mesh-token"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    programs = binaries()
    if programs is None:
        pytest.skip(
            "needs kube-apiserver and etcd: scripts/build_kube_apiserver.sh makes them, or"
            " KUBEBUILDER_ASSETS names their folder"
        )
    with api_server(tmp_path_factory.mktemp("api-server"), programs) as running:
        for api_version, kinds in _FOREIGN.items():
            for kind in kinds:
                running.define(api_version, kind, namespaced=not kind.startswith("Cluster"))
        yield running


@pytest.fixture(scope="module")
def chart(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, missing = chart_for(server.version, tmp_path_factory.mktemp("chart"))
    # With -s or -rP.
    print(f"Kubernetes {server.version}: the chart without {missing}")  # noqa: T201
    return made


@pytest.fixture
def namespace(server: ApiServer) -> str:
    return server.new_namespace()


def lost(given: Any, stored: Any, path: str = "") -> Iterator[str]:
    """What was applied and is not kept, or is kept otherwise."""
    match given, stored:
        case dict(), dict():
            for key, value in given.items():
                if key == "stringData":
                    encoded = {k: base64.b64encode(v.encode()).decode() for k, v in value.items()}
                    yield from lost(encoded, stored.get("data"), f"{path}.data")
                # Some fields that are false are left out.
                elif value not in (None, False) or stored.get(key):
                    yield from lost(value, stored.get(key), f"{path}.{key}")
        case list(), list() if len(given) == len(stored):
            for index, (one, other) in enumerate(zip(given, stored, strict=True)):
                yield from lost(one, other, f"{path}[{index}]")
        case _ if given != stored and (
            quantity(given) is None or quantity(given) != quantity(stored)
        ):
            yield f"{path}: {given!r} became {stored!r}"


def content(stored: Object) -> Object:
    """All but how often and by whom it was written."""
    versions = ("resourceVersion", "managedFields")
    metadata = {key: value for key, value in stored["metadata"].items() if key not in versions}
    return stored | {"metadata": metadata}


def quantity(text: object) -> Decimal | None:
    """Of Kubernetes, such as 1Gi or 100m; None: it is none."""
    if not isinstance(text, str):
        return None
    powers = {"m": Decimal("0.001"), "": Decimal(1)}
    powers |= {unit: Decimal(1000) ** (power + 1) for power, unit in enumerate("kMGT")}
    powers |= {f"{unit}i": Decimal(1024) ** (power + 1) for power, unit in enumerate("KMGT")}
    digits = text.rstrip("kmKMGTi")
    with contextlib.suppress(ArithmeticError):
        return Decimal(digits) * powers.get(text.removeprefix(digits), Decimal("nan"))
    return None


@pytest.mark.parametrize("name", VALUE_SETS)
def test_everything_is_accepted_and_kept(
    server: ApiServer, chart: Path, namespace: str, name: str
) -> None:
    for each in render(VALUE_SETS[name], chart=chart):
        where = f"{each['kind']} {each['metadata']['name']}"
        applied = server.apply(each, namespace)
        assert applied.warnings == (), where
        assert list(lost(each, applied.stored)) == [], where
        # As the next upgrade finds it, which changes nothing then.
        assert content(server.apply(each, namespace).stored) == content(applied.stored), where


def test_kserve_files_are_accepted(server: ApiServer, namespace: str) -> None:
    yaml = pytest.importorskip("yaml")
    paths = sorted((ROOT / "deploy/kserve").glob("**/*.yaml"))
    objects = [each for path in paths for each in yaml.safe_load_all(path.read_text()) if each]
    assert len(objects) >= 8
    for each in objects:
        applied = server.apply(each, namespace)
        assert (applied.warnings, list(lost(each, applied.stored))) == ((), [])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("terminationGracePeriodSeconds", "terminationGracePeriod"),
        ('"team": "ml"', '"team": "ml and others"'),
        ('"runAsNonRoot": true', '"runAsNonRoot": "yes"'),
        ('"name": "http"', '"name": "http_of_clients"'),
        # With the values of the other type.
        ('"type": "RollingUpdate"', '"type": "Recreate"'),
    ],
)
def test_the_server_refuses_what_is_wrong(
    server: ApiServer, chart: Path, namespace: str, right: str, wrong: str
) -> None:
    objects = render(VALUE_SETS["least"] | {"commonLabels": {"team": "ml"}}, chart=chart)
    text = json.dumps(named(objects, "Deployment", "demo-nereid-gateway"))
    server.apply(json.loads(text), namespace, dry_run=True)
    assert right in text
    with pytest.raises(ApiError):
        server.apply(json.loads(text.replace(right, wrong)), namespace, dry_run=True)


def test_what_is_not_kept_is_found(server: ApiServer, chart: Path, namespace: str) -> None:
    gateway = named(render(VALUE_SETS["least"], chart=chart), "Deployment", "demo-nereid-gateway")
    stored = server.apply(gateway, namespace).stored
    stored["spec"]["replicas"] = 1
    (container,) = stored["spec"]["template"]["spec"]["containers"]
    del container["ports"][1]["name"]
    container["resources"]["limits"]["cpu"] = "2000m"
    place = ".spec.template.spec.containers[0].ports[1].name"
    assert list(lost(gateway, stored)) == [
        ".spec.replicas: 2 became 1",
        f"{place}: 'grpc' became None",
    ]


class Release:
    """Helm's release of the chart in a namespace of its own."""

    def __init__(self, server: ApiServer, chart: Path, namespace: str) -> None:
        self._server = server
        self._chart = str(chart)
        self._namespace = namespace
        self._helm = pytest.importorskip("helm_python")
        self._config = self._helm.Config(
            kubeconfig_content=kubeconfig(server), namespace=namespace, qps=1000, burst_limit=1000
        )

    def close(self) -> None:
        self._config.close()

    def install(self, name: str) -> None:
        self._config.install(self._chart, "demo", VALUE_SETS[name], namespace=self._namespace)

    def upgrade(self, name: str) -> str:
        """What the server refuses, or nothing."""
        try:
            self._config.upgrade(
                self._chart, "demo", VALUE_SETS[name], namespace=self._namespace, reset_values=True
            )
        except self._helm.HelmError as error:
            return str(error)
        return ""

    def rollback(self, revision: int) -> None:
        self._config.rollback("demo", version=revision)

    def uninstall(self) -> None:
        self._config.uninstall("demo")

    def token(self) -> str:
        found: str = self._server.get(_TOKEN, self._namespace)["data"]["token"]
        return found

    def workloads(self) -> dict[str, Object]:
        """By name."""
        return {
            each["metadata"]["name"]: each
            for kind in WORKLOADS
            for each in self._server.request(
                "GET", self._server.path({"apiVersion": "apps/v1", "kind": kind}, self._namespace)
            ).stored["items"]
        }

    def generations(self) -> dict[str, int]:
        """Of the workloads: one that has changed restarts its pods, or scales."""
        return {name: each["metadata"]["generation"] for name, each in self.workloads().items()}


def kubeconfig(server: ApiServer) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": server.url, "certificate-authority": server.authority},
                }
            ],
            "users": [{"name": "test", "user": {"token": server.token}}],
        }
    )


@pytest.fixture
def release(server: ApiServer, chart: Path, namespace: str) -> Iterator[Release]:
    with contextlib.closing(Release(server, chart, namespace)) as made:
        yield made


def test_helm_upgrades_from_any_values_to_the_next(release: Release) -> None:
    first, *others = VALUE_SETS
    release.install(first)
    token = release.token()
    refused = {name: error for name in (*others, first) if (error := release.upgrade(name))}
    assert refused == {}, json.dumps(refused, indent=1)
    assert release.token() == token


def test_an_upgrade_with_the_same_values_changes_nothing(
    release: Release, server: ApiServer, namespace: str
) -> None:
    release.install("autoscaled by queue time")
    before = release.workloads()
    assert release.upgrade("autoscaled by queue time") == ""
    assert release.workloads() == before
    # As an autoscaler does, and a person by kubectl scale.
    executors = {
        **before["demo-nereid-executor-cpu"],
        "apiVersion": "apps/v1",
        "kind": "Deployment",
    }
    path = server.path(executors, namespace, "demo-nereid-executor-cpu/scale")
    server.request("PATCH", path, {"spec": {"replicas": 7}}, "application/merge-patch+json")
    assert release.upgrade("autoscaled by queue time") == ""
    assert release.workloads()["demo-nereid-executor-cpu"]["spec"]["replicas"] == 7


def test_secrets_outlive_the_release(release: Release) -> None:
    release.install("least")
    token, generations = release.token(), release.generations()
    assert release.upgrade("watched") == ""
    release.rollback(1)
    assert release.token() == token
    assert release.generations().keys() == generations.keys()
    release.uninstall()
    assert release.workloads() == {}
    release.install("least")
    assert release.token() == token
