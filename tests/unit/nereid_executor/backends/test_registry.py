"""Which backends an executor finds: its own, installed packages', and directories of Triton's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nereid.core.errors import Internal, InvalidArgument
from nereid_executor.backends import identity
from nereid_executor.backends.onnx import backend
from nereid_executor.backends.python.python_based import PythonBased
from nereid_executor.backends.registry import BUILT_IN, BackendRegistry, BuiltInBackend

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
    backends = BackendRegistry()
    assert {"identity", "onnxruntime"} <= set(backends.available_backends())
    assert backends.load_backend("onnxruntime") is backend
    assert backends.load_backend("identity") is identity


def test_one_whose_package_is_missing_is_not_offered() -> None:
    missing = BuiltInBackend("no.such.module", "no_such_package")
    backends = BackendRegistry(built_in={**BUILT_IN, "b": missing})
    assert "b" not in backends.available_backends()
    with pytest.raises(InvalidArgument, match="unable to find backend library for backend 'b'"):
        backends.load_backend("b")


def test_backends_are_imported_ahead_and_missing_ones_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, source in (("preloaded", ""), ("broken", "raise ImportError('no library')")):
        (tmp_path / f"nereid_{name}.py").write_text(source)
    own = {name: BuiltInBackend(f"nereid_{name}", "numpy") for name in ("preloaded", "broken")}
    BackendRegistry(built_in=own).preload(["unknown", "broken", "preloaded"])
    assert "nereid_preloaded" in sys.modules


def test_a_package_brings_backends(install: Install) -> None:
    backends = BackendRegistry()
    install("their_package", "def uses_gpus(): return True", "theirs = their_package")
    assert "theirs" in backends.available_backends()
    assert backends.load_backend("theirs").__name__ == "their_package"  # type: ignore[attr-defined]
    assert backends.any_uses_gpus()


def test_an_installed_backend_replaces_nereids(install: Install) -> None:
    backends = BackendRegistry()
    source = "class Backend:\n    def uses_gpus(self): return False\n\nbackend = Backend()"
    install("their_identity", source, "identity = their_identity:backend")
    assert backends.available_backends().count("identity") == 1
    assert type(backends.load_backend("identity")).__module__ == "their_identity"


def test_any_package_replaces_a_backend_of_nereids_own_distribution(install: Install) -> None:
    backends = BackendRegistry()
    install("their_package", "", "theirs = their_package")
    install("nereid-mesh", "", "theirs = nereid_backend")
    assert backends.load_backend("theirs").__name__ == "their_package"  # type: ignore[attr-defined]


def test_a_packaged_backend_without_its_runtime_is_not_offered(install: Install) -> None:
    backends = BackendRegistry()
    runtimes = "[nereid.backend_runtimes]\nwith_runtime = numpy\nwithout_runtime = no_such_runtime"
    points = f"with_runtime = their_package\nwithout_runtime = their_package\n{runtimes}"
    install("their_package", "", points)
    assert "with_runtime" in backends.available_backends()
    assert "without_runtime" not in backends.available_backends()


def test_a_folder_with_a_model_file_is_a_backend(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    BackendRegistry(tmp_path)
    assert f"there are no Python-based backends (<backend>/model.py) in '{tmp_path}'" in caplog.text
    (tmp_path / "echo").mkdir()
    (tmp_path / "echo" / "model.py").touch()
    # One of Triton's own, of which there is nothing to use.
    (tmp_path / "dali").mkdir()
    backends = BackendRegistry(tmp_path)
    assert "echo" in backends.available_backends()
    assert "dali" not in backends.available_backends()
    assert isinstance(backends.load_backend("echo"), PythonBased)
    assert backends.python_based_backends() == ("echo",)


def test_a_package_replaces_a_python_based_backend_unless_the_model_names_its_runtime(
    install: Install, tmp_path: Path
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "model.py").touch()
    backends = BackendRegistry(tmp_path)
    install("their_package", "", "theirs = their_package")
    assert backends.load_backend("theirs").__name__ == "their_package"  # type: ignore[attr-defined]
    assert isinstance(backends.load_backend("theirs", "model.py"), PythonBased)
    assert backends.python_based_backends() == ()


def test_a_backend_that_cannot_be_imported_is_an_error_and_affects_no_other(
    install: Install,
) -> None:
    backends = BackendRegistry()
    install("broken_package", "raise RuntimeError('no licence')", "broken = broken_package")
    assert "broken" in backends.available_backends()
    with pytest.raises(Internal) as caught:
        backends.load_backend("broken")
    assert caught.value.message == (
        "unable to load backend library for backend 'broken': no licence"
    )
    assert backends.any_uses_gpus() is backend.uses_gpus()
