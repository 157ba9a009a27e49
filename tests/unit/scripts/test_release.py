"""A release needs one version everywhere, and its changelog's section."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from scripts.release import (
    PROVENANCE,
    ROOT,
    check_metadata,
    disagreements,
    lock_files,
    release_notes,
    repack,
    verify,
    version_of,
    write_checksums,
    write_provenance,
)

PYPROJECT = '[project]\nname = "nereid-mesh"\nversion = "1.2.3"\n'
CHART = 'apiVersion: v2\nname: nereid\nversion: 1.2.3\nappVersion: "1.2.3"\n'
CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-01-02\n\n### New\n- a\n\n## 1.2.2\n\n- b\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in (
        ("pyproject.toml", PYPROJECT),
        ("deploy/helm/nereid/Chart.yaml", CHART),
        ("deploy/kserve/runtime.yaml", "image: nereid-serve:1.2.3\n"),
        ("deploy/argocd/app.yaml", "    targetRevision: 1.2.3\n"),
        ("docs/page.md", "docker push REGISTRY/nereid-gateway:1.2.3\n"),
        ("CHANGELOG.md", CHANGELOG),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_a_tree_that_agrees(tree: Path) -> None:
    assert disagreements(tree) == []
    assert disagreements(tree, "v1.2.3") == []
    assert release_notes(tree) == "### New\n- a"


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        ("pyproject.toml", "1.2.3", "1.2.4", "tag v1.2.3: pyproject.toml has version 1.2.4"),
        ("deploy/helm/nereid/Chart.yaml", "version: 1.2.3", "version: 1.2.2", "version is 1.2.2"),
        ("deploy/helm/nereid/Chart.yaml", '"1.2.3"', '"1.2.2"', "appVersion is 1.2.2"),
        ("deploy/helm/nereid/Chart.yaml", "appVersion", "other", "appVersion is none"),
        ("deploy/kserve/runtime.yaml", "1.2.3", "1.2.2", "kserve/runtime.yaml: has version 1.2.2"),
        ("deploy/argocd/app.yaml", "1.2.3", "1.2.2", "argocd/app.yaml: has version 1.2.2"),
        ("docs/page.md", "1.2.3", "1.2.2", "docs/page.md: has version 1.2.2"),
        ("CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n- c\n", "Unreleased, and empty"),
        ("CHANGELOG.md", "## Unreleased\n", "", "Unreleased, and empty"),
        ("CHANGELOG.md", " - 2026-01-02", "", 'comes "1.2.3", not "1.2.3 - DATE"'),
        ("CHANGELOG.md", "1.2.3 - 2026-01-02", "1.3.0 - 2026-01-02", 'comes "1.3.0 - 2026-01-02"'),
        ("CHANGELOG.md", "## ", "### ", 'comes "none"'),
    ],
)
def test_what_disagrees_is_named(tree: Path, path: str, old: str, new: str, said: str) -> None:
    file = tree / path
    file.write_text(file.read_text().replace(old, new))
    found = disagreements(tree, "v1.2.3")
    assert any(said in each for each in found), found


def test_a_version_without_a_section_has_no_notes(tree: Path) -> None:
    (tree / "pyproject.toml").write_text(PYPROJECT.replace("1.2.3", "9.0.0"))
    assert release_notes(tree) == ""


def test_this_tree_says_one_version_also_between_releases() -> None:
    found = disagreements(ROOT, f"v{version_of(ROOT)}")
    assert [each for each in found if "first section has to be Unreleased" not in each] == []


@pytest.mark.parametrize(
    ("version", "said"), [(version_of(ROOT), None), ("0.0.1", "its metadata have version 0.0.1")]
)
def test_an_sdists_metadata_are_of_this_version(
    tmp_path: Path, version: str, said: str | None
) -> None:
    package = tmp_path / "nereid_mesh-x.tar.gz"
    text = f"Metadata-Version: 2.4\nName: nereid-mesh\nVersion: {version}\n".encode()
    with tarfile.open(package, "w:gz") as sdist:
        entry = tarfile.TarInfo("nereid_mesh-x/PKG-INFO")
        entry.size = len(text)
        sdist.addfile(entry, io.BytesIO(text))
    if said is None:
        check_metadata(package)
    else:
        with pytest.raises(SystemExit, match=said):
            check_metadata(package)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz"])
def test_an_archive_keeps_nothing_of_its_builds_surroundings(tmp_path: Path, name: str) -> None:
    made = []
    for number, mode in enumerate((0o700, 0o755)):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
            for file in ("b", "a")[:: 1 - 2 * number]:
                entry = tarfile.TarInfo(file)
                entry.size, entry.mode = 1, mode
                entry.mtime, entry.uid, entry.uname = number + 0.5, number, f"user{number}"
                archive.addfile(entry, io.BytesIO(file.encode()))
        repack(path, 1_700_000_000)
        made.append(path.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(fileobj=io.BytesIO(made[0])) as archive:
        assert [(each.name, each.mode, each.mtime) for each in archive] == [
            ("a", 0o755, 1_700_000_000),
            ("b", 0o755, 1_700_000_000),
        ]
        content = archive.extractfile("a")
        assert content is not None
        assert content.read() == b"a"


def test_checksums_leave_themselves_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    for _ in range(2):
        write_checksums(tmp_path)
        assert (tmp_path / "SHA256SUMS").read_text() == f"{hashlib.sha256(b'x').hexdigest()}  a\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nereid-1.2.3.tgz").write_bytes(b"chart")
    (tmp_path / "nereid_mesh-1.2.3.tar.gz").write_bytes(b"sdist")
    write_provenance(tmp_path)
    write_checksums(tmp_path)
    (tmp_path / "SHA256SUMS.sigstore.json").write_bytes(b"{}")
    return tmp_path


def _rewrite(folder: Path, old: str, new: str) -> None:
    path = folder / PROVENANCE
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_provenance_names_files_commit_and_lock_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(folder) == []
    assert capsys.readouterr().out.startswith("2 files of ")
    statement = json.loads((folder / PROVENANCE).read_text())
    dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert "requirements/gateway.txt" in {each["name"] for each in dependencies}
    assert PROVENANCE in (folder / "SHA256SUMS").read_text()
    # Whoever needs one file alone verifies it alone.
    (folder / "nereid-1.2.3.tgz").unlink()
    assert verify(folder) == []


def test_another_file_source_or_statement_is_found(folder: Path) -> None:
    chart = folder / "nereid-1.2.3.tgz"
    chart.write_bytes(b"another chart")
    (folder / "more.whl").touch()
    another = hashlib.sha256(b"another chart").hexdigest()
    assert [line.partition(": ")[::2] for line in verify(folder)] == [
        ("more.whl", "the provenance does not name it"),
        (chart.name, f"its digest is {another}, not {hashlib.sha256(b'chart').hexdigest()}"),
    ]
    (folder / "more.whl").unlink()
    chart.write_bytes(b"chart")
    locked = lock_files("HEAD")["requirements/gateway.txt"]
    _rewrite(folder, locked, "0" * 64)
    (line,) = verify(folder)
    assert line.startswith("requirements/ of ")
    statement = json.loads((folder / PROVENANCE).read_text())
    source = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    _rewrite(folder, source["digest"]["gitCommit"], "0" * 40)
    (line,) = verify(folder)
    assert line == f"this checkout lacks the commit {'0' * 40}: git fetch"
    _rewrite(folder, '"' + "0" * 40, '"--output=file')
    assert verify(folder) == [f"{PROVENANCE}: it names no commit"]
    _rewrite(folder, "https://slsa.dev/provenance/v1", "https://slsa.dev/provenance/v0.1")
    assert verify(folder) == [f"{PROVENANCE}: it is another kind of statement"]
    for text in ("", "[]", "{}"):
        (folder / PROVENANCE).write_text(text)
        (line,) = verify(folder)
        assert line.startswith(f"{PROVENANCE}: it cannot be read: ")
