"""Model names that are commands to whatever gives them to a shell."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tests.support.hostile.raw_clients import post
from tests.support.models import python_models


def command_name(marker: Path) -> str:
    """A name whose command makes a file. It has no slash and no space, as in a path of HTTP."""
    path = str(marker).replace("/", "${HOME:0:1}")
    return f"x$(touch${{IFS}}{path})"


def load_request(name: str, environment: Path | None = None) -> bytes:
    """A load that brings a Python model, with a Python of its own if there is one."""
    config: dict[str, Any] = {
        "backend": "python",
        "input": [{"name": "COMMAND", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "REPLY", "data_type": "TYPE_STRING", "dims": [1]}],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    }
    if environment is not None:
        config["parameters"] = {"EXECUTION_ENV_PATH": {"string_value": str(environment)}}
    source = base64.b64encode(python_models.source("talk").encode()).decode()
    parameters = {"config": json.dumps(config), "file:1/model.py": source}
    body = json.dumps({"parameters": parameters}).encode()
    return post(f"/v2/repository/models/{name}/load", body)
