"""Secrets that a process inherits, and what models' processes see of the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from nereid.config.inherited_secrets import SecretsFile, public_environ

READ = """
import json, os
from nereid.config.inherited_secrets import read_environ
before = dict(os.environ)
found = read_environ()["NEREID_WORD"]
print(json.dumps([found, "NEREID_WORD" in before, len(os.listdir("/proc/self/fd"))]))
"""


def test_a_child_reads_its_secrets_and_keeps_no_descriptor() -> None:
    ours = {name: text for name, text in os.environ.items() if name != "NEREID_WORD"}
    plain = [sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"]
    usual = int(subprocess.run(plain, check=True, capture_output=True, env=ours).stdout)
    # A secret of any size, and of any characters.
    word = "é;\n" * 100_000
    with SecretsFile({"NEREID_WORD": word}) as secrets:
        child = subprocess.run(
            [sys.executable, "-c", READ],
            env={**ours, **secrets.environ},
            pass_fds=secrets.descriptors,
            capture_output=True,
            check=True,
        )
        shown = secrets.environ
    assert json.loads(child.stdout) == [word, False, usual]
    assert word not in str(shown)


def test_what_models_see(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEREID_MESH_TOKEN", "NEREID_CACHE_CONFIG", "TRITONCACHE_REDIS_PASSWORD"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    seen = public_environ()
    assert "secret" not in seen.values()
    assert seen["CUDA_VISIBLE_DEVICES"] == "1"
