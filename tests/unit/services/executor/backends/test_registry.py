"""Which backends an executor finds: its own, installed packages', and directories of Triton's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nereid.core.errors import Internal, InvalidArgument
from nereid.services.executor import backends
from nereid.services.executor.backends import identity
from nereid.services.executor.backends.onnx import backend
from nereid.services.executor.backends.python.python_based import PythonBased

Install = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package, as pip would: its modules, and where it names its backends."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def package(name: str, source: str, entry_points: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[nereid.backends]\n{entry_points}\n")

    return package


def test_own_backends_are_found_by_name() -> None:
    assert {"identity", "onnxruntime"} <= set(backends.available())
    assert backends.get("onnxruntime") is backend
    assert backends.get("identity") is identity


def test_a_backend_that_is_not_there_is_told_in_tritons_words() -> None:
    with pytest.raises(InvalidArgument) as caught:
        backends.get("b")
    assert caught.value.message == (
        "unable to find backend library for backend 'b', "
        "try specifying runtime on the model configuration."
    )


def test_one_whose_package_is_missing_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends._MODULES, "b", ("no.such.module", "no_such_package"))
    assert "b" not in backends.available()
    with pytest.raises(InvalidArgument, match="unable to find backend library for backend 'b'"):
        backends.get("b")


def test_a_package_brings_backends(install: Install) -> None:
    install("their_package", "def uses_gpus(): return True", "theirs = their_package")
    assert "theirs" in backends.available()
    assert backends.get("theirs").__name__ == "their_package"  # type: ignore[attr-defined]
    assert backends.any_uses_gpus()


def test_an_installed_backend_takes_the_place_of_nereids(install: Install) -> None:
    source = "class Backend:\n    def uses_gpus(self): return False\n\nbackend = Backend()"
    install("their_identity", source, "identity = their_identity:backend")
    assert backends.available().count("identity") == 1
    assert type(backends.get("identity")).__module__ == "their_identity"


def test_a_folder_with_a_model_file_is_a_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backends, "_FILES", {})
    backends.look_in(tmp_path)
    assert f"there are no Python-based backends (<backend>/model.py) in '{tmp_path}'" in caplog.text
    (tmp_path / "echo").mkdir()
    (tmp_path / "echo" / "model.py").touch()
    # One of Triton's own, of which there is nothing to use.
    (tmp_path / "dali").mkdir()
    backends.look_in(tmp_path)
    assert "echo" in backends.available()
    assert "dali" not in backends.available()
    assert isinstance(backends.get("echo"), PythonBased)


def test_a_backend_that_cannot_be_imported_says_why_and_harms_no_other(install: Install) -> None:
    install("broken_package", "raise RuntimeError('no licence')", "broken = broken_package")
    assert "broken" in backends.available()
    with pytest.raises(Internal) as caught:
        backends.get("broken")
    assert caught.value.message == (
        "unable to load backend library for backend 'broken': no licence"
    )
    assert backends.any_uses_gpus() is backend.uses_gpus()
