"""What many tests of services begin with: a gateway, or a model repository.

Modules that need it otherwise have fixtures of these names themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc.aio
import pytest

from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.scheduler.scheduler_world import World, add_model, world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def site() -> AsyncIterator[GatewaySite]:
    async with gateway_site() as made:
        yield made


@pytest.fixture
async def channel(site: GatewaySite) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(site.grpc) as made:
        yield made


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One model, the doubler."""
    path = tmp_path / "models"
    add_model(path)
    return path


@pytest.fixture
async def mesh(repository: Path) -> AsyncIterator[World]:
    """A scheduler of these models."""
    async with world(repository) as it:
        yield it
