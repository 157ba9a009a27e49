"""What a scheduler's settings ask of its surroundings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nereid.process.service_process import StartError
from nereid.rpc import Handlers
from nereid_scheduler.environment import Environment, open_environment
from nereid_scheduler.settings import Settings
from tests.support.rpc.local_channel import LocalChannel


def opened(tmp_path: Path, *, cache: bool = False, **settings: Any) -> Environment:
    made = Settings(model_repository=(str(tmp_path),), **settings)
    ports = SimpleNamespace(open_cache=lambda: LocalChannel(Handlers()) if cache else None)
    return open_environment(made, None, None, cast("Any", ports), cache_in_memory=False)


async def test_without_a_directory_nothing_outlives_the_scheduler(tmp_path: Path) -> None:
    assert opened(tmp_path).state.models is None
    assert opened(tmp_path, state_directory=str(tmp_path)).state.models is not None


@pytest.mark.parametrize(
    ("cache", "error"),
    [
        (False, "--state-name requires --cache-address, of a cache in Redis"),
        (True, "--state-name requires the mesh's own token"),
    ],
)
async def test_a_state_in_redis_needs_a_cache_and_a_secret(
    tmp_path: Path, cache: bool, error: str
) -> None:
    with pytest.raises(StartError, match=error):
        opened(tmp_path, cache=cache, state_name="mesh")


async def test_limits_follow_the_settings(tmp_path: Path) -> None:
    plain = opened(tmp_path).load_rules(None, lambda _: {})
    assert plain.limits.admission_target_ms == 0
    assert plain.rate_limiter is None
    limited = opened(tmp_path, admission="codel", rate_limit="execution_count")
    rules = limited.load_rules(None, lambda _: {})
    assert rules.limits.admission_target_ms == limited.settings.admission_target_ms
    assert rules.rate_limiter is not None
