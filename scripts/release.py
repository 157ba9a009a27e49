"""Check that the version is the same everywhere, and build the files of a release.

usage: release.py check [--tag vX.Y.Z]   fails where version, changelog, chart or contract disagree
       release.py build [--output DIR]   sdist, pure wheel, chart, provenance, checksums, of HEAD
       release.py compare [--compiled] [--images]   builds twice, and fails where digests differ
       release.py notes                  the changelog's section of this version
       release.py sums DIR               writes DIR/provenance.intoto.json and DIR/SHA256SUMS
       release.py verify DIR             fails where a file is not what the provenance says

`make release-dry-run` is check and build; .github/workflows/release.yml does all three and adds the
compiled wheels, the images, signatures and attestations.
"""

from __future__ import annotations

import argparse
import contextlib
import email
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
CHART = Path("deploy/helm/nereid")
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_RELEASED = re.compile(r"(\d+\.\d+\.\d+)(?: - \d{4}-\d{2}-\d{2})?")
# Targets of deploy/Dockerfile, with their build arguments; those for GPUs are as large as CUDA.
IMAGES = {
    **{name: (f"SERVICE={name}",) for name in ("gateway", "scheduler", "cache", "executor")},
    "serve": ("REQUIREMENTS=serve-image",),
}
PROVENANCE = "provenance.intoto.json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://slsa.dev/provenance/v1"
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
# Versions of images, in manifests and in what pages tell readers to type, and of the chart.
_STATED = re.compile(r"\bnereid-[a-z-]+:(\d+\.\d+\.\d+)\b|\btargetRevision: (\d+\.\d+\.\d+)\b")
_STATING = ("deploy/**/*.yaml", "deploy/**/*.md", "docs/**/*.md", "README.md")


def version_of(root: Path) -> str:
    """Return the version in pyproject.toml."""
    text = (root / "pyproject.toml").read_text()
    return str(tomllib.loads(text)["project"]["version"])


def sections(changelog: str) -> dict[str, str]:
    """Return the text of each section by its heading, in the file's order."""
    parts = _SECTION.split(changelog)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def release_notes(root: Path) -> str:
    """Return the changelog's section about this version, or "" if there is none."""
    version = version_of(root)
    for name, text in sections((root / "CHANGELOG.md").read_text()).items():
        if name.partition(" ")[0] == version:
            return text
    return ""


def disagreements(root: Path, tag: str | None = None) -> list[str]:
    """Return a line for each problem that prevents a release, with what to change.

    tag: in the form vX.Y.Z.
    """
    version = version_of(root)
    found = []
    if tag is not None and tag != f"v{version}":
        found.append(f"tag {tag}: pyproject.toml has version {version}")
    chart = (root / CHART / "Chart.yaml").read_text()
    for key in ("version", "appVersion"):
        match = re.search(rf'^{key}: "?([^"\n]+)"?$', chart, re.MULTILINE)
        stated = match[1] if match else "none"
        if stated != version:
            found.append(f"{CHART}/Chart.yaml: {key} is {stated}, not {version}")
    headings = list(sections((root / "CHANGELOG.md").read_text()).items())
    if not headings or headings[0] != ("Unreleased", ""):
        found.append("CHANGELOG.md: the first section has to be Unreleased, and empty")
    latest = headings[1][0] if len(headings) > 1 else "none"
    match = _RELEASED.fullmatch(latest)
    if match is None or match[1] != version or latest == version:
        found.append(f'CHANGELOG.md: after Unreleased comes "{latest}", not "{version} - DATE"')
    for pattern in _STATING:
        for path in sorted(root.glob(pattern)):
            said = {"".join(groups) for groups in _STATED.findall(path.read_text())}
            others = sorted(said - {version})
            found += [f"{path.relative_to(root)}: has version {other}" for other in others]
    return found


def check(tag: str | None) -> None:
    """Print the disagreements, and exit with 1 if there are any."""
    found = disagreements(ROOT, tag)
    contract = [sys.executable, "protos/generate.py", "--check-recorded"]
    done = subprocess.run(contract, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        found.append(done.stderr.strip())
    if found:
        sys.exit("\n".join(found))
    print(f"{version_of(ROOT)}: version, chart, images' tags, changelog and contract agree")


def build(output: Path, *, compiled: bool = False) -> None:
    """Build the files that a release publishes; compiled: the wheel for this platform, as well.

    HEAD alone decides about every byte, with the tools in requirements/build.txt.
    """
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    epoch = _git("log", "-1", "--format=%ct", "HEAD")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0"}
    with _tree_of_head() as tree:
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output)]
        for compiles in ("0", "1") if compiled else ("0",):
            subprocess.run(
                [*command, str(tree)],
                check=True,
                stdout=subprocess.DEVNULL,
                umask=0o022,
                env={**environment, "NEREID_COMPILE": compiles},
            )
        packaged = package_chart(tree / CHART, output)
    for path in [*output.glob("*.tar.gz"), *output.glob("*.tgz")]:
        repack(path, int(epoch))
    for path in sorted(output.iterdir()):
        if path.suffix == ".whl" or path.name.endswith(".tar.gz"):
            check_metadata(path)
    twine = shutil.which("twine")
    if twine is not None:
        packages = [str(path) for path in output.iterdir() if path.suffix != ".tgz"]
        subprocess.run([twine, "check", "--strict", *packages], check=True)
    write_provenance(output)
    write_checksums(output)
    for path in sorted(output.iterdir()):
        print(f"{path}: {path.stat().st_size} bytes")
    wheels = [] if compiled else ["compiled wheels"]
    not_made = [*wheels, "images", "signatures"] + ([] if packaged else ["the chart"])
    print(f"not made here: {', '.join(not_made)}{'' if twine else '; twine check did not run'}")


def _git(*words: str) -> str:
    command = [shutil.which("git") or "git", *words]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextlib.contextmanager
def _tree_of_head() -> Iterator[Path]:
    """Only the tracked files are built: what an earlier build left in the checkout is not."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        archive = tree / "tree.tar"
        # The modes in the wheel are those of the files, less the umask.
        _git("-c", "tar.umask=0022", "archive", f"--output={archive}", "HEAD")
        with tarfile.open(archive) as file:
            file.extractall(tree, filter="data")
        archive.unlink()
        yield tree


def image_digests(*options: str) -> list[str]:
    """Build all images of HEAD for CPUs, and return a line for each: digest and name.

    The digest is that of the layers and the configuration. An engine's own has the time of the
    build as well, unless it knows SOURCE_DATE_EPOCH. PYTHON_IMAGE and COMPILE are build arguments.
    """
    docker = shutil.which("docker") or "docker"
    lines = []
    with _tree_of_head() as tree:
        for name, arguments in IMAGES.items():
            image = f"nereid-{name}:reproduced"
            command = [docker, "build", "--quiet", f"--target={name}", f"--tag={image}", *options]
            given = ("PYTHON_IMAGE", "COMPILE", *arguments)
            command += [f"--build-arg={each}" for each in given]
            command += ["--file=deploy/Dockerfile", "."]
            subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
            shown = [docker, "image", "inspect", image]
            done = subprocess.run(shown, check=True, capture_output=True, text=True)
            (facts,) = json.loads(done.stdout)
            parts = [facts["RootFS"]["Layers"], facts["Config"]]
            digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
            lines.append(f"{digest}  nereid-{name}")
    return lines


def package_chart(chart: Path, output: Path) -> bool:
    """Package the chart by helm, or by the library that `make chart` installs.

    Returns whether the chart could be packaged.
    """
    if (helm := shutil.which("helm")) is not None:
        subprocess.run([helm, "package", str(chart), "--destination", str(output)], check=True)
    else:
        try:
            import helm_python  # noqa: PLC0415
        except ImportError:
            return False
        helm_python.package(str(chart), destination=str(output))
    (archive,) = output.glob("nereid-*.tgz")
    with tarfile.open(archive) as file:
        names = file.getnames()
    # These are links in the checkout.
    for needed in ("files/prometheus/rules/alerts.yml", "files/dashboards/overview.json"):
        if not any(name.endswith(needed) for name in names):
            sys.exit(f"{archive.name} lacks {needed}")
    return True


def repack(archive: Path, epoch: int) -> None:
    """Write an archive anew without what its build took from clock, user and file system."""
    content = io.BytesIO()
    with tarfile.open(archive) as source, tarfile.open(fileobj=content, mode="w") as target:
        for member in sorted(source.getmembers(), key=lambda each: each.name):
            mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            plain = member.replace(
                mtime=epoch, mode=mode, uid=0, gid=0, uname="", gname="", deep=False
            )
            plain.pax_headers = {}
            target.addfile(plain, source.extractfile(member) if member.isfile() else None)
    archive.write_bytes(gzip.compress(content.getvalue(), mtime=epoch))


def compare(*, compiled: bool, images: bool) -> None:
    """Build twice, in other places and with other variables; exit if files or images differ."""
    with tempfile.TemporaryDirectory() as directory:
        sums: list[list[str]] = []
        for name, zone, mask in (("one", "UTC", 0o022), ("the other", "Asia/Tokyo", 0o077)):
            os.environ["TZ"] = zone
            os.umask(mask)
            output = Path(directory, name)
            build(output, compiled=compiled)
            lines = (output / "SHA256SUMS").read_text().splitlines()
            if images:
                # The first build may be an earlier one's, from the engine's cache.
                lines += image_digests(*["--no-cache"] * len(sums))
            sums.append(lines)
        differing = sorted(set(sums[0]) ^ set(sums[1]))
        if differing:
            sys.exit("\n".join(["two builds differ:", *differing]))
        print("\n".join(["two builds are equal:", *sums[0]]))


def check_metadata(package: Path) -> None:
    """Exit if a package index would refuse the package's metadata, or if the version is wrong."""
    from packaging.metadata import Metadata  # noqa: PLC0415

    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            (name,) = [file for file in wheel.namelist() if file.endswith(".dist-info/METADATA")]
            text = wheel.read(name)
    else:
        with tarfile.open(package) as sdist:
            file = sdist.extractfile(f"{package.name.removesuffix('.tar.gz')}/PKG-INFO")
            text = file.read() if file else b""
    # Raises an error for what does not fit the metadata's own version.
    Metadata.from_email(text, validate=True)
    said = email.message_from_bytes(text)["Version"]
    if said != version_of(ROOT):
        sys.exit(f"{package.name}: its metadata have version {said}")


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS for all files in a folder, in the format that sha256sum --check reads."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.name != "SHA256SUMS"
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))


def lock_files(commit: str) -> dict[str, str]:
    """Return the SHA-256 of each file of requirements/ in a commit, by path."""
    paths = _git("ls-tree", "--name-only", "--full-tree", commit, "requirements/").splitlines()
    command = [shutil.which("git") or "git", "show"]
    return {
        path: hashlib.sha256(
            subprocess.run(
                [*command, f"{commit}:{path}"], cwd=ROOT, check=True, capture_output=True
            ).stdout
        ).hexdigest()
        for path in paths
    }


def write_provenance(folder: Path) -> None:
    """Write what made the files of a folder: an in-toto statement with SLSA's provenance."""
    commit = _git("rev-parse", "HEAD")
    source: dict[str, object] = {"name": "source", "digest": {"gitCommit": commit}}
    builder, run = "urn:nereid-mesh:build-on-a-machine", {}
    variables = os.environ
    if "GITHUB_ACTIONS" in variables:
        server, repository = variables["GITHUB_SERVER_URL"], variables["GITHUB_REPOSITORY"]
        source["uri"] = f"git+{server}/{repository}@{variables['GITHUB_REF']}"
        builder = f"{server}/{variables['GITHUB_WORKFLOW_REF']}"
        identity = f"{variables['GITHUB_RUN_ID']}/attempts/{variables['GITHUB_RUN_ATTEMPT']}"
        run = {"metadata": {"invocationId": f"{server}/{repository}/actions/runs/{identity}"}}
    locks = [
        {"name": path, "digest": {"sha256": digest}} for path, digest in lock_files(commit).items()
    ]
    statement = {
        "_type": _STATEMENT,
        "subject": [
            {"name": name, "digest": {"sha256": digest}}
            for name, digest in _digests(folder).items()
        ],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:nereid-mesh:scripts/release.py",
                "externalParameters": {"version": version_of(ROOT)},
                "resolvedDependencies": [source, *locks],
            },
            "runDetails": {"builder": {"id": builder}, **run},
        },
    }
    (folder / PROVENANCE).write_text(json.dumps(statement, indent=1) + "\n")


def verify(folder: Path) -> list[str]:
    """Return a line for each way in which a folder's files differ from their provenance.

    Without its signature the provenance itself shows nothing.
    """
    try:
        statement = json.loads((folder / PROVENANCE).read_text())
        if (statement["_type"], statement["predicateType"]) != (_STATEMENT, _PREDICATE):
            return [f"{PROVENANCE}: it is another kind of statement"]
        named = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
        source, *locks = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
        commit = source["digest"]["gitCommit"]
        # Nothing that git takes for an option.
        if not _COMMIT.fullmatch(commit):
            return [f"{PROVENANCE}: it names no commit"]
        locked = {each["name"]: each["digest"]["sha256"] for each in locks}
        builder = statement["predicate"]["runDetails"]["builder"]["id"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        return [f"{PROVENANCE}: it cannot be read: {error!r}"]
    present = _digests(folder)
    found = [f"{name}: the provenance does not name it" for name in present if name not in named]
    found += [
        f"{name}: its digest is {digest}, not {named[name]}"
        for name, digest in present.items()
        if named.get(name, digest) != digest
    ]
    if not present:
        found.append(f"{folder}: no file that the provenance could name")
    try:
        if lock_files(commit) != locked:
            found.append(f"requirements/ of {commit} is not what the provenance says")
    except subprocess.CalledProcessError:
        found.append(f"this checkout lacks the commit {commit}: git fetch")
    if not found:
        print(f"{len(present)} files of {source.get('uri', 'commit')} {commit}, by {builder}")
    return found


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a release, without signatures and what lists files."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name not in {PROVENANCE, "SHA256SUMS"} and not path.name.endswith(".sigstore.json")
    }


def main() -> None:
    """Run the command that argv names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument("--tag")
    commands.add_parser("build").add_argument(
        "--output", type=Path, default=ROOT / "build" / "release"
    )
    comparing = commands.add_parser("compare")
    comparing.add_argument("--compiled", action="store_true")
    comparing.add_argument("--images", action="store_true")
    commands.add_parser("notes")
    for name in ("sums", "verify"):
        commands.add_parser(name).add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.command == "check":
        check(given.tag)
    elif given.command == "build":
        build(given.output.absolute())
    elif given.command == "compare":
        compare(compiled=given.compiled, images=given.images)
    elif given.command == "sums":
        write_provenance(given.folder)
        write_checksums(given.folder)
    elif given.command == "verify":
        if found := verify(given.folder):
            sys.exit("\n".join(found))
    else:
        print(release_notes(ROOT))


if __name__ == "__main__":
    main()
