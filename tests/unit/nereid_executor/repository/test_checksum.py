"""The files that the agent `checksum` reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nereid.core.errors import InvalidArgument
from nereid.repository_agents import AgentModel
from nereid_executor.repository.checksum import ChecksumAgent


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    model = AgentModel("m", 1, tmp_path, {"MD5:pipe": "0"})
    with pytest.raises(InvalidArgument, match="read pipe: it is not a regular file"):
        ChecksumAgent().before_load(model)
