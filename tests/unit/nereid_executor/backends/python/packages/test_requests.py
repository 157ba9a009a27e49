"""The files that name a model's packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from nereid_executor.backends.python.packages.requests import Lock, RequestError, find_request

HASHED = "alpha==1.0 \\\n    --hash=sha256:00\n"
SCRIPT = '# /// script\n# dependencies = ["beta"]\n# ///\n'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text("")
    return tmp_path / "m"


def texts(model: Path) -> dict[str, str] | None:
    request = find_request(model / "1", model / "1" / "model.py")
    return None if request is None else request.texts


def test_the_nearest_source_counts(model: Path) -> None:
    assert texts(model) is None
    (model / "requirements.txt").write_text("alpha")
    assert texts(model) == {"requirements.txt": "alpha"}
    (model / "1" / "model.py").write_text(SCRIPT)
    assert texts(model) == {"1/requirements.txt": "beta"}
    (model / "1" / "requirements.txt").write_text("gamma")
    assert texts(model) == {"1/requirements.txt": "gamma"}


def test_files_without_packages_name_none(model: Path) -> None:
    (model / "requirements.txt").write_text("# none\n\n")
    (model / "1" / "model.py").write_bytes(b"# coding: latin-1\n'\xe9'" + b" " * (1 << 21))
    assert texts(model) is None
    assert find_request(model / "2", model / "2" / "model.py") is None


def test_locks_are_required_once_they_are_there(model: Path) -> None:
    (model / "1" / "requirements.txt").write_text("alpha")
    lock = model / "1" / "requirements.lock"
    lock.write_text(HASHED)
    request = find_request(model / "1", model / "1" / "model.py")
    assert request is not None
    assert request.lock is Lock.HASHES
    assert next(iter(request.texts)) == "1/requirements.lock"
    lock.write_text("alpha==1.0")
    with pytest.raises(RequestError, match="has no hashes"):
        texts(model)


def test_a_lock_of_a_script(model: Path) -> None:
    (model / "1" / "model.py").write_text(SCRIPT)
    (model / "1" / "model.py.lock").write_text("version = 1")
    request = find_request(model / "1", model / "1" / "model.py")
    assert request is not None
    assert request.lock is Lock.SCRIPT
    assert next(iter(request.texts)) == "model.py"


def test_locks_of_projects_and_of_any_tool(model: Path) -> None:
    (model / "requirements.txt").write_text("alpha")
    (model / "uv.lock").write_text('version = 1\nrequires-python = ">=3.9"\n')
    with pytest.raises(RequestError, match=r"uv\.lock is the lock of pyproject\.toml"):
        texts(model)
    (model / "pyproject.toml").write_text('[project]\nname = "m"\n')
    request = find_request(model / "1", model / "1" / "model.py")
    assert request is not None
    assert (request.lock, request.requires_python) == (Lock.PROJECT, ">=3.9")
    assert list(request.texts) == ["pyproject.toml", "uv.lock"]
    (model / "pylock.toml").write_text('lock-version = "1.0"\n# https://host\n')
    request = find_request(model / "1", model / "1" / "model.py")
    assert request is not None
    assert request.lock is Lock.PYLOCK
    assert list(request.texts) == ["pylock.toml"]
    assert not request.has_remote_source


@pytest.mark.parametrize("text", ["[", "requires-python = 3", 'requires-python = "three"'])
def test_locks_that_make_no_sense(model: Path, text: str) -> None:
    (model / "pylock.toml").write_text(text)
    with pytest.raises(RequestError, match=r"pylock\.toml: "):
        texts(model)


def test_included_files_count_and_lie_in_the_models_folder(model: Path) -> None:
    (model / "shared.txt").write_text("alpha\n-c limits.txt")
    (model / "limits.txt").write_text("alpha<2\n-r shared.txt")
    (model / "1" / "requirements.txt").write_text("-r ../shared.txt  # ours\n--pre\nbeta")
    assert list(texts(model) or ()) == ["1/requirements.txt", "shared.txt", "limits.txt"]
    (model / "limits.txt").write_text("-r ../../secret.txt")
    (model.parent.parent / "secret.txt").write_text("password")
    with pytest.raises(RequestError, match=r"'\.\./\.\./secret\.txt', which cannot be read"):
        texts(model)


@pytest.mark.parametrize(
    "line", ["-e .", "./alpha", "../alpha.whl", "/a", "alpha @ file:///a", "file:///a", "a-1.whl"]
)
def test_local_files_are_refused(model: Path, line: str) -> None:
    (model / "requirements.txt").write_text(f"beta\n{line}\n")
    with pytest.raises(RequestError, match="names a local file"):
        texts(model)


def test_files_that_make_no_sense(model: Path) -> None:
    path = model / "requirements.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="cannot be read"):
        texts(model)
    path.write_text("#" * (1 << 20) + "\n")
    with pytest.raises(RequestError, match="larger than"):
        texts(model)


@pytest.mark.parametrize(
    ("line", "remote"),
    [
        ("alpha", False),
        ("--index-url https://host/simple", False),
        ("alpha  # see https://host", False),
        ("alpha @ https://host/a.tar.gz", True),
        ("git+ssh://host/a", True),
        ("--find-links https://host/", True),
    ],
)
def test_urls(model: Path, line: str, remote: bool) -> None:
    (model / "requirements.txt").write_text(line)
    request = find_request(model / "1", model / "1" / "model.py")
    assert request is not None
    assert request.has_remote_source is remote
