"""Models as users write them, for tests that serve them; save() puts them in a repository."""

from __future__ import annotations

import shutil
from pathlib import Path

_HERE = Path(__file__).parent


def save(root: Path, model: str, config: str = "", name: str = "") -> Path:
    """Add a model to a repository, also under another name; its directory."""
    directory = root / (name or model)
    (directory / "1").mkdir(parents=True)
    shutil.copy(_HERE / f"{model}.py", directory / "1" / "model.py")
    if config:
        (directory / "config.pbtxt").write_text(config)
    return directory


def source(model: str) -> str:
    """The text of its model.py."""
    return (_HERE / f"{model}.py").read_text()


# A batch may take three seconds.
LIMIT = 'parameters { key: "execute-timeout-seconds" value { string_value: "3" } }\n'

PROBER = """
backend: "python"
input { name: "CODE" data_type: TYPE_STRING dims: [1] }
output { name: "REPLY" data_type: TYPE_STRING dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
"""

TALK = """
backend: "python"
input [
  { name: "COMMAND" data_type: TYPE_STRING dims: [1] },
  { name: "BLOB" data_type: TYPE_UINT8 dims: [-1] optional: true }
]
output [
  { name: "REPLY" data_type: TYPE_STRING dims: [1] },
  { name: "BLOB" data_type: TYPE_UINT8 dims: [-1] }
]
instance_group [{ count: 1 kind: KIND_CPU }]
"""

# Configuration with so many instances.
CALLER = """
backend: "python"
input { name: "COMMAND" data_type: TYPE_STRING dims: [1] }
output { name: "REPLY" data_type: TYPE_STRING dims: [1] }
instance_group [{ count: %d kind: KIND_CPU }]
"""

REPEAT = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "COUNT" data_type: TYPE_INT32 dims: [1] },
  { name: "SIZE" data_type: TYPE_INT32 dims: [1] },
  { name: "MODE" data_type: TYPE_STRING dims: [1] }
]
output [
  { name: "OUT" data_type: TYPE_INT32 dims: [1] },
  { name: "BLOB" data_type: TYPE_UINT8 dims: [-1] }
]
instance_group [{ count: 1 kind: KIND_CPU }]
"""

CHARGING = """
backend: "python"
input { name: "SECONDS" data_type: TYPE_FP32 dims: [1] }
output { name: "TOTAL" data_type: TYPE_FP32 dims: [1] }
instance_group [{ count: 1 kind: KIND_CPU }]
"""

AT_MOST_ONCE = 'parameters { key: "at_most_once" value { string_value: "true" } }\n'

RELAY = """
backend: "python"
max_batch_size: 2
input { name: "PATH" data_type: TYPE_STRING dims: [1] }
output { name: "REPLY" data_type: TYPE_STRING dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
"""
