"""Who has which ServiceAccount: a bucket's role is schedulers' and executors' alone."""

from __future__ import annotations

from typing import Any, Final

from tests.support.chart.objects import WORKLOADS, component, named, of_kind, pod_template
from tests.support.chart.rendering import Object, render
from tests.support.chart.value_sets import VALUE_SETS

_ROLE: Final = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/m"}
_GOOGLE: Final = "iam.gke.io/gcp-service-account"


def accounts(objects: list[Object]) -> dict[str, dict[str, str]]:
    """Each account's annotations, by name."""
    return {
        each["metadata"]["name"]: each["metadata"].get("annotations", {})
        for each in of_kind(objects, "ServiceAccount")
    }


def users(objects: list[Object]) -> dict[str, set[str]]:
    """The components whose pods have an account, by its name."""
    found: dict[str, set[str]] = {}
    for each in of_kind(objects, *WORKLOADS):
        name = pod_template(each)["spec"]["serviceAccountName"]
        found.setdefault(name, set()).add(component(each))
    return found


def test_each_component_has_its_own_and_those_that_read_models_the_role() -> None:
    objects = render(VALUE_SETS["object store"])
    assert users(objects) == {
        "demo-nereid-gateway": {"gateway"},
        "demo-nereid-scheduler": {"scheduler"},
        "demo-nereid-executor-cpu": {"executor"},
        "demo-nereid-cache": {"cache"},
        "demo-nereid-redis": {"redis"},
    }
    reads = {"demo-nereid-scheduler", "demo-nereid-executor-cpu"}
    assert accounts(objects) == {name: _ROLE if name in reads else {} for name in users(objects)}


def test_components_have_annotations_of_their_own() -> None:
    objects = render(VALUE_SETS["buckets of all kinds, traced"])
    found = accounts(objects)
    assert found["demo-nereid-scheduler"] == {_GOOGLE: "reader@p.iam"}
    assert found["demo-nereid-executor-cpu"] == {_GOOGLE: "all@p.iam"}
    assert found["demo-nereid-gateway"] == {}
    # Somebody else's.
    assert "vision" in users(objects)
    assert "vision" not in found


def test_a_components_annotations_win() -> None:
    values: dict[str, Any] = {
        "serviceAccount": {"annotations": {**_ROLE, "a": "b"}},
        "scheduler": {"serviceAccount": {"annotations": {"a": "c"}}},
    }
    found = accounts(render(VALUE_SETS["least"] | values))
    assert found["demo-nereid-scheduler"] == {**_ROLE, "a": "c"}
    assert found["demo-nereid-executor-cpu"] == {**_ROLE, "a": "b"}


def test_one_name_is_one_account() -> None:
    objects = render(VALUE_SETS["one account for all"])
    assert users(objects).keys() == accounts(objects).keys() == {"models"}
    (account,) = of_kind(objects, "ServiceAccount")
    assert account["metadata"]["annotations"] == {"azure.workload.identity/client-id": "1"}
    assert "app.kubernetes.io/component" not in account["metadata"]["labels"]


def test_none_is_made() -> None:
    objects = render(VALUE_SETS["least"] | {"serviceAccount": {"create": False}})
    assert (accounts(objects), set(users(objects))) == ({}, {"default"})
    given = render(VALUE_SETS["a strict platform"])
    assert (accounts(given), set(users(given))) == ({}, {"given"})
    own = {"serviceAccount": {"create": True}}
    mixed = VALUE_SETS["least"] | {"serviceAccount": {"create": False}, "gateway": own}
    assert accounts(render(mixed)).keys() == {"demo-nereid-gateway"}


def test_a_token_of_the_api_server_is_for_those_that_ask() -> None:
    objects = render(VALUE_SETS["dual-stack with sidecars"])
    mounted = {
        component(each): pod_template(each)["spec"]["automountServiceAccountToken"]
        for each in of_kind(objects, *WORKLOADS)
    }
    assert {name for name, is_mounted in mounted.items() if is_mounted} == {"gateway"}
    assert named(objects, "ServiceAccount", "edge")["automountServiceAccountToken"] is False
