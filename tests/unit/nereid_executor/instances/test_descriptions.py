"""What of model files is read again."""

from __future__ import annotations

from pathlib import Path

from nereid.pb import nereid_pb2 as pb
from nereid_executor.core.model_files import ModelFiles
from nereid_executor.instances.descriptions import Descriptions

PATH = Path("/m/1")


class World:
    def __init__(self, most: int = 10) -> None:
        self.files: ModelFiles | None = ModelFiles(frozenset({("a", 1, b"1")}), frozenset())
        self.descriptions = Descriptions(lambda _: self.files, most)
        self.reads = 0
        self.response = pb.Described()

    def ask(self, session: int, name: str = "m", command: int = 1) -> pb.Described:
        asked = pb.Describe(command=command, version_path=f"/{name}/1")
        asked.config.name = name

        def describe() -> pb.Described:
            self.reads += 1
            self.response.command = command
            return self.response

        return self.descriptions.describe(session, asked, PATH, describe)


def test_another_session_is_given_what_is_known() -> None:
    world = World()
    world.response.inputs.add(name="x")
    world.ask(1, command=5)
    described = world.ask(2, command=6)
    assert (described.command, described.inputs[0].name) == (6, "x")
    assert world.reads == 1
    # The model goes to and fro.
    world.ask(1)
    world.ask(2)
    assert world.reads == 1
    # The same one asks because it wants to know anew.
    world.ask(2)
    assert world.reads == 2


def test_other_questions_and_other_files_are_read() -> None:
    world = World()
    world.ask(1)
    world.ask(2, "n")
    assert world.reads == 2
    world.files = ModelFiles(frozenset({("a", 1, b"2")}), frozenset())
    world.ask(2)
    assert world.reads == 3


def test_what_failed_or_cannot_be_compared_is_read() -> None:
    world = World()
    world.response.error.code = 5
    world.ask(1)
    world.response.ClearField("error")
    world.ask(2)
    world.files = None
    world.ask(3, "n")
    world.ask(4, "n")
    assert world.reads == 4


def test_the_oldest_are_forgotten() -> None:
    world = World(most=2)
    for name in "abc":
        world.ask(1, name)
    world.ask(2, "c")
    assert world.reads == 3
    world.ask(2, "a")
    assert world.reads == 4
