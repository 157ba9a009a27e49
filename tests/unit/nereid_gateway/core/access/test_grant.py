"""What grants and their unions permit."""

from __future__ import annotations

import pytest

from nereid_gateway.core.access.api_groups import APIS
from nereid_gateway.core.access.grant import (
    ALL_APIS,
    NOTHING,
    Grant,
    Limits,
    Permission,
    union,
)
from nereid_gateway.core.grpc_methods import METHODS
from nereid_gateway.core.routes import ENDPOINTS
from nereid_gateway.guards.policy.grpc_guard import api_of


def grant(rights: str, *models: str, **limits: float) -> Grant:
    permission = Permission(frozenset(rights.split()), models or None)
    return Grant((permission,), Limits(**limits))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "model", "permitted"),
    [
        ("resnet*", "resnet50", True),
        ("resnet*", "my-resnet", False),
        ("a?c", "abc", True),
        ("a?c", "ABC", False),
        ("[ab]", "b", True),
        ("a.c", "abc", False),
        ("*", "x" * 1024, True),
        ("*", "x" * 1025, False),
        ("a", "a\n", False),
    ],
)
def test_patterns_of_models(pattern: str, model: str, permitted: bool) -> None:
    assert grant("inference", pattern).permits_model("inference", model) is permitted


def test_no_list_permits_all_models_and_an_empty_one_none() -> None:
    assert grant("inference").permits_model("inference", "any")
    assert not grant("inference").depends_on_model("inference")
    empty = Grant((Permission(frozenset({"inference"}), ()),))
    assert empty.permits("inference")
    assert not empty.permits_model("inference", "any")


def test_a_union_does_not_mix_one_permissions_models_with_anothers_rights() -> None:
    both = union([grant("inference", "a*"), grant("statistics health")])
    assert both.permits_model("inference", "a1")
    assert not both.permits_model("inference", "b")
    assert both.permits_model("statistics", "b")
    assert both.depends_on_model("inference")
    assert not both.depends_on_model("statistics")
    assert not both.permits("trace")


def test_a_union_has_the_widest_limits() -> None:
    narrow = grant("health", requests_per_second=1, burst=9, concurrency=2)
    wide = grant("health", requests_per_second=5, burst=5, concurrency=3)
    assert union([narrow, wide]).limits == Limits(5, 9, 3)
    assert union([narrow, grant("health")]).limits == Limits(None, 9, None)
    assert union([]) is NOTHING


def test_both_protocols_have_the_same_groups_and_nothing_is_in_none() -> None:
    assert {endpoint.api for endpoint in ENDPOINTS} == {*APIS, ""}
    assert [endpoint.handler for endpoint in ENDPOINTS if not endpoint.api] == [
        "ConsoleEndpoints.page"
    ]
    assert {method.api for method in METHODS} == set(APIS) - {"console"}
    assert api_of("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo") == "metadata"
    assert api_of("/grpc.health.v1.Health/Check") == "health"
    # What nobody has listed needs all rights.
    assert api_of("/inference.GRPCInferenceService/Later") not in APIS
    assert api_of("/inference.GRPCInferenceService/Later") in ALL_APIS


@pytest.mark.parametrize(
    ("grants", "patterns"),
    [
        ([grant("inference", "a*")], ("a*",)),
        ([grant("model-repository", "a*"), grant("inference", "b", "a*")], ("a*", "b")),
        # Neither has it.
        ([grant("metadata")], ()),
        ([grant("metadata", "c"), grant("inference", "a")], ("a",)),
        ([], ()),
        # Any model.
        ([grant("inference", "a"), grant("model-repository")], None),
        ([grant("inference")], None),
    ],
)
def test_models_of_steps(grants: list[Grant], patterns: tuple[str, ...] | None) -> None:
    models = union(grants).step_models()
    assert (None if models is None else models.patterns) == patterns


@pytest.mark.parametrize(
    ("grants", "text"),
    [
        ([grant("inference", "a*")], b'[["a*"]]'),
        ([grant("model-repository"), grant("inference", "b", "a*")], b'[["b", "a*"]]'),
        ([grant("inference", "a"), grant("inference")], b""),
        ([grant("metadata")], b"[[]]"),
    ],
)
def test_models_that_may_be_called_for_a_client(grants: list[Grant], text: bytes) -> None:
    assert union(grants).callable_models == text
