"""Fixtures for tests of models: `nereid_mesh` and `serve_models`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nereid.app.mesh import Mesh


@pytest.fixture(scope="session")
def serve_models() -> Iterator[Callable[..., Mesh]]:
    """Serve models, as `nereid.serve` does: `serve_models(double, flags=[...])`.

    Tests that ask for the same models get the same mesh, which ends with the session.
    """
    from nereid.app.mesh import serve  # noqa: PLC0415 - only where tests use it

    with ExitStack() as meshes:
        running: dict[str, Mesh] = {}

        def serve_once(*models: Any, **options: Any) -> Mesh:
            key = repr((models, sorted(options.items())))
            if key not in running:
                running[key] = meshes.enter_context(serve(*models, wait=False, **options))
            return running[key]

        yield serve_once


@pytest.fixture(scope="module")
def nereid_mesh(request: pytest.FixtureRequest, serve_models: Callable[..., Mesh]) -> Mesh:
    """Return a mesh that serves the models that the test's module defines or imports."""
    from nereid.app.model import Model  # noqa: PLC0415 - only where tests use it

    names = vars(request.module)
    models = {each.name: each for each in names.values() if isinstance(each, Model)}
    if not models:
        pytest.fail(f"{request.module.__name__} has no model: import one, or use serve_models")
    return serve_models(*models.values())
