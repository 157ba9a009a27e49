"""What each role may call, and the roles that certificates name."""

from __future__ import annotations

import pytest

from nereid.mesh_auth.roles import Role, method_roles, roles_of_names

SCHEDULER = "/nereid.v1.Scheduler/"


@pytest.mark.parametrize(
    ("method", "roles"),
    [
        ("Join", {Role.EXECUTOR}),
        ("Execute", {Role.EXECUTOR}),
        ("Infer", {Role.GATEWAY, Role.EXECUTOR}),
        ("Peer", {Role.SCHEDULER}),
        ("ModelReady", {Role.GATEWAY, Role.OPERATOR, Role.EXECUTOR, Role.SCHEDULER}),
        ("RepositoryModelLoad", {Role.GATEWAY, Role.OPERATOR, Role.SCHEDULER}),
        ("LogSettings", {Role.GATEWAY, Role.OPERATOR, Role.SCHEDULER}),
    ],
)
def test_the_table(method: str, roles: set[Role]) -> None:
    assert method_roles()[SCHEDULER + method] == roles


def test_executors_load_models_only_where_that_is_allowed() -> None:
    allowed = method_roles(executor_control=True)
    changed = {path for path, roles in allowed.items() if roles != method_roles()[path]}
    assert changed == {SCHEDULER + "RepositoryModelLoad", SCHEDULER + "RepositoryModelUnload"}
    assert all(Role.EXECUTOR in allowed[path] for path in changed)


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (["executor-3.mesh.example"], {Role.EXECUTOR}),
        (["Gateway01"], {Role.GATEWAY}),
        (["mesh.example", "scheduler.example", "cache"], {Role.SCHEDULER, Role.CACHE}),
        (["executors.example", "my-executor", "example.executor"], set()),
        ([], set()),
    ],
)
def test_the_first_label_of_a_name_gives_the_role(names: list[str], roles: set[Role]) -> None:
    assert roles_of_names(names) == roles
