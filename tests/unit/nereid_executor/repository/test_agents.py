"""Repository agents: which are called, with what, and what becomes of their errors."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from nereid.core.errors import Internal, InvalidArgument, NereidError, Unimplemented
from nereid.pb import model_config_pb2 as config_pb
from nereid.repository_agents import AgentModel, RefusedError, RepositoryAgent
from nereid_executor.repository.agents import (
    ENTRY_POINT_GROUP,
    RepositoryAgents,
    installed_agents,
)
from nereid_executor.repository.checksum import ChecksumAgent


class Recorder(RepositoryAgent):
    """Sends the next agent to a folder below."""

    calls: list[tuple[str, Path, dict[str, str]]]

    def __init__(self) -> None:
        self.calls = []
        self.error: Exception | None = None

    def before_load(self, model: AgentModel) -> Path | None:
        self.calls.append(("before", model.directory, dict(model.parameters)))
        if self.error is not None:
            raise self.error
        return model.directory / "below"

    def after_unload(self, model: AgentModel) -> None:
        self.calls.append(("after", model.directory, dict(model.parameters)))
        raise OSError("nobody minds")


def config(*names: str) -> config_pb.ModelConfig:
    made = config_pb.ModelConfig(name="m")
    for name in names:
        made.model_repository_agents.agents.add(name=name).parameters["of"] = name
    return made


def test_each_has_what_the_one_before_returned() -> None:
    one, two, plain = Recorder(), Recorder(), RepositoryAgent()
    agents = RepositoryAgents({"one": lambda: one, "two": lambda: two, "plain": lambda: plain})
    assert agents.names == ["one", "plain", "two"]
    path, runs = agents.before_load(config("one", "plain", "two"), 1, Path("/m"))
    assert path == Path("/m/below/below")
    agents.after_unload(runs)
    assert one.calls == [
        ("before", Path("/m"), {"of": "one"}),
        ("after", Path("/m"), {"of": "one"}),
    ]
    assert two.calls[0] == ("before", Path("/m/below"), {"of": "two"})


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (RefusedError("no licence"), InvalidArgument("no licence")),
        (Unimplemented("no such thing"), Unimplemented("no such thing")),
        (KeyError("secret"), Internal("repository agent 'two' failed: internal error")),
    ],
    ids=["refused", "nereid", "other"],
)
def test_errors_end_the_load(raised: Exception, error: NereidError) -> None:
    one, two = Recorder(), Recorder()
    two.error = raised
    agents = RepositoryAgents({"one": lambda: one, "two": lambda: two})
    with pytest.raises(type(error), match=error.message):
        agents.before_load(config("one", "two"), 1, Path("/m"))
    assert [each[0] for each in one.calls] == ["before", "after"]
    assert [each[0] for each in two.calls] == ["before"]


def test_agents_that_are_missing_or_cannot_be_made() -> None:
    def fail() -> RepositoryAgent:
        raise ImportError("secret")

    agents = RepositoryAgents({"broken": fail})
    with pytest.raises(InvalidArgument, match="unable to find repository agent 'other'"):
        agents.before_load(config("other"), 1, Path("/m"))
    with pytest.raises(Internal, match=r"unable to load repository agent 'broken'$"):
        agents.before_load(config("broken"), 1, Path("/m"))


def test_packages_may_bring_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "their_agents-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-agents\nVersion: 1\n")
    point = f"[{ENTRY_POINT_GROUP}]\ntheirs = their_agents:Theirs\n"
    (package / "entry_points.txt").write_text(point)
    (tmp_path / "their_agents.py").write_text("class Theirs:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = installed_agents()
    assert sorted(found) == ["checksum", "theirs"]
    assert type(found["theirs"]()).__qualname__ == "Theirs"


# ---- checksum


def check(tmp_path: Path, parameters: dict[str, str], version: int = 1) -> None:
    directory = tmp_path / "m"
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "1/model.onnx").write_bytes(b"content")
    ChecksumAgent().before_load(AgentModel("m", version, directory, parameters))


GOOD = hashlib.md5(b"content").hexdigest()


def test_the_right_digest(tmp_path: Path) -> None:
    check(tmp_path, {"MD5:1/model.onnx": GOOD, "md5:1/model.onnx": GOOD})


def test_another_digest(tmp_path: Path) -> None:
    text = f"Mismatched MD5 hash for file 1/model.onnx, expect: {'0' * 32}, got: {GOOD}"
    with pytest.raises(InvalidArgument, match=text):
        check(tmp_path, {"MD5:1/model.onnx": "0" * 32})


def test_files_of_other_versions_are_theirs_to_check(tmp_path: Path) -> None:
    check(tmp_path, {"MD5:1/model.onnx": "0" * 32}, version=2)


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        ("model.onnx", InvalidArgument, "failed to parse key: model.onnx"),
        ("SHA1:x", Unimplemented, "Unsupported checksum algorithm: SHA1"),
        ("MD5:none", InvalidArgument, "failed to open text file for read none: No such file"),
        ("MD5:../x", InvalidArgument, "file '../x' is not in the model's directory"),
    ],
)
def test_keys_that_make_no_sense(
    tmp_path: Path, key: str, error: type[NereidError], text: str
) -> None:
    with pytest.raises(error, match=text):
        check(tmp_path, {key: GOOD})
