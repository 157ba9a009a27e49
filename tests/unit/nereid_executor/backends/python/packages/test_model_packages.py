"""Environments of models, built from wheels that need no index."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from nereid.core.errors import Internal, InvalidArgument, NereidError, Unavailable
from nereid.pb import model_config_pb2
from nereid_executor.backends.python.packages.build_commands import Installer
from nereid_executor.backends.python.packages.model_packages import (
    ModelPackages,
    find_installer,
)
from nereid_executor.settings import ExecutorSettings, read
from tests.support.models.wheels import save_source, save_wheel

CONFIG = model_config_pb2.ModelConfig(name="m", backend="python")
PIP = Installer(sys.executable, is_uv=False)


class Model:
    """Version 1 of a model whose wheels lie beside it, and an executor's packages."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.version = tmp_path / "m" / "1"
        self.version.mkdir(parents=True)
        self.wheels = tmp_path / "m" / "wheels"
        self.kept = tmp_path / "kept"
        self.settings = ExecutorSettings(model_environment_directory=str(self.kept), **settings)
        self.progress: list[str] = []
        self.cancelled = threading.Event()

    def require(self, text: str, name: str = "requirements.txt") -> None:
        (self.version / name).write_text(text)

    def python(self, installer: Installer | None = None) -> str:
        """Install the packages; the environment's interpreter."""
        packages = ModelPackages(self.settings, installer)
        request = packages.find(CONFIG, self.version)
        assert request is not None
        lease = packages.lease("m", request, self.cancelled, self.progress.append)
        lease.release()
        return str(lease.path / "bin" / "python")

    def error(self, kind: type[NereidError], installer: Installer | None = None) -> str:
        with pytest.raises(kind) as caught:
            self.python(installer)
        assert not list(self.kept.glob("environments/*"))
        return caught.value.message


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


def evaluate(python: str, expression: str) -> str:
    code = f"import alpha, numpy, sys; print({expression})"
    return subprocess.check_output([python, "-c", code], text=True, env={}).strip()


@pytest.mark.slow
@pytest.mark.parametrize("installer", [None, PIP], ids=["uv", "pip"])
def test_an_environment(model: Model, installer: Installer | None) -> None:
    save_wheel(model.wheels, "alpha", "1.0", requires=("beta",))
    save_wheel(model.wheels, "beta", "3.0")
    model.require("alpha\n")
    python = model.python(installer)
    assert evaluate(python, "alpha.VERSION") == "1.0"
    # pb_utils needs numpy, which the requirements do not name.
    assert evaluate(python, "numpy.ones(2).sum()") == "2.0"
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.check_output([python, "-c", "import google.protobuf"], stderr=subprocess.STDOUT)
    assert model.progress[0] == "resolving its packages"
    assert "installing 2 packages" in model.progress
    model.progress.clear()
    assert model.python(installer) == python
    assert model.progress == []
    save_wheel(model.wheels, "alpha", "2.0")
    assert evaluate(model.python(installer), "alpha.VERSION") == "2.0"


@pytest.mark.slow
@pytest.mark.parametrize("installer", [None, PIP], ids=["uv", "pip"])
def test_a_lock_is_required(model: Model, installer: Installer | None) -> None:
    wheel = save_wheel(model.wheels, "alpha", "1.0")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    model.require("alpha")
    model.require(f"alpha==1.0 --hash=sha256:{digest}\n", "requirements.lock")
    assert evaluate(model.python(installer), "alpha.VERSION") == "1.0"


@pytest.mark.slow
def test_a_lock_of_a_script_and_an_index(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    for version in ("1.0", "2.0"):
        save_wheel(index / "alpha", "alpha", version)
    links = (
        f'<a href="{wheel.name}#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}">'
        f"{wheel.name}</a>"
        for wheel in sorted((index / "alpha").iterdir())
    )
    (index / "alpha" / "index.html").write_text("\n".join(links))
    # Where pip is told of an index, uv asks the same one.
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{index}")
    head = '# /// script\n# dependencies = ["alpha<2"]\n# requires-python = ">=3.9"\n# ///\n'
    model.require(head, "model.py")
    assert evaluate(model.python(), "alpha.VERSION") == "1.0"
    lock = [find_installer().program, "lock", "--no-config", "--default-index", f"file://{index}"]
    script = model.version / "model.py"
    subprocess.check_call([*lock, "--script", str(script)], stderr=subprocess.DEVNULL)
    assert evaluate(model.python(), "alpha.VERSION") == "1.0"
    wheel = save_wheel(index / "alpha", "alpha", "1.0", "VERSION = 'forged'\n")
    shutil.rmtree(model.kept)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in model.error(Internal)


@pytest.mark.slow
@pytest.mark.parametrize("installer", [None, PIP], ids=["uv", "pip"])
def test_failures_say_the_installers_last_words(model: Model, installer: Installer | None) -> None:
    save_wheel(model.wheels, "alpha", "1.0")
    model.require(f"alpha==1.0 --hash=sha256:{'0' * 64}\n", "requirements.lock")
    text = model.error(Internal, installer)
    assert text.startswith(f"model 'm': the packages of {model.version}/requirements.lock cannot")
    assert "0" * 64 in text
    (model.version / "requirements.lock").unlink()
    model.require("alpha==7")
    assert "alpha==7" in model.error(Internal, installer)
    assert model.progress


@pytest.mark.slow
def test_a_build_has_a_limit(tmp_path: Path) -> None:
    model = Model(tmp_path, model_build_timeout_secs=1.0)
    save_source(model.wheels, "alpha", "1.0", "import threading; threading.Event().wait()")
    model.require("alpha")
    assert "were not installed within 1 s (--model-build-timeout" in model.error(Internal)


@pytest.mark.slow
def test_a_build_that_nobody_wants_ends(model: Model) -> None:
    model.cancelled.set()
    model.wheels.mkdir()
    model.require("alpha")
    assert model.error(Unavailable) == "model 'm' is not wanted any more"


def test_offline(tmp_path: Path) -> None:
    model = Model(tmp_path, model_packages="offline")
    model.require("alpha")
    assert "no wheelhouse" in model.error(InvalidArgument)
    model.wheels.mkdir()
    model.require("alpha @ https://host/alpha.zip")
    assert "names a URL" in model.error(InvalidArgument)


def test_where_models_may_not_install(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Model(tmp_path, model_packages="off")
    model.require("alpha")
    caplog.set_level(logging.INFO)
    assert ModelPackages(model.settings).find(CONFIG, model.version) is None
    assert "models may not install packages (--model-packages)" in caplog.text
    assert read([], {}).model_packages == "on"
    assert read(["--hardened"], {}).model_packages == "off"


def test_environments_that_are_given_take_precedence(model: Model) -> None:
    model.require("-e .")
    packages = ModelPackages(model.settings)
    with pytest.raises(InvalidArgument, match="names a local file"):
        packages.find(CONFIG, model.version)
    given = model_config_pb2.ModelConfig(name="m", backend="python")
    given.parameters["EXECUTION_ENV_PATH"].string_value = "/env"
    assert packages.find(given, model.version) is None
    assert not packages.may_apply(model_config_pb2.ModelConfig(backend="onnxruntime"))
