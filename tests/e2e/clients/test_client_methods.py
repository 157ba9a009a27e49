"""Every public method of NVIDIA's four clients, against a mesh that allows all that they can ask.

A method that a new release of the clients brings fails here until somebody writes a check for it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.support.mesh.client_control import CONTROL
from tests.support.mesh.client_inference import INFERENCE, ONLY
from tests.support.mesh.mesh import Mesh
from tests.support.mesh.nvidia_clients import FLAVOURS, SITES, Client, connected, public_methods
from tests.support.mesh.open_mesh import open_mesh

pytestmark = pytest.mark.slow

CHECKS = CONTROL | INFERENCE


@pytest.fixture(scope="module")
def mesh_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Mesh]]:
    """One mesh for each edge engine, once somebody asks for it."""
    with ExitStack() as stack:

        @cache
        def mesh(engine: str) -> Mesh:
            return stack.enter_context(open_mesh(tmp_path_factory.mktemp(engine), engine))

        yield mesh


def applies(check: Callable[[Client], None], flavour: str) -> bool:
    return flavour in ONLY.get(check, (flavour,)) and set(CHECKS[check]) <= public_methods(flavour)


ROWS = [
    pytest.param(
        *(engine, flavour, check),
        id=f"{check.__name__}-{flavour}-{engine}",
        marks=[pytest.mark.nightly] if engine == "grpcio" else [],
    )
    for engine, flavour in SITES
    for check in CHECKS
    if applies(check, flavour)
]


@pytest.mark.parametrize(("engine", "flavour", "check"), ROWS)
def test_it_does_what_it_says(
    mesh_on: Callable[[str], Mesh], engine: str, flavour: str, check: Callable[[Client], None]
) -> None:
    with connected(mesh_on(engine), flavour) as client:
        check(client)
        assert set(CHECKS[check]) <= client.called


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_no_method_is_left_out(flavour: str) -> None:
    checked = {name for check in CHECKS if applies(check, flavour) for name in CHECKS[check]}
    assert public_methods(flavour) <= checked
