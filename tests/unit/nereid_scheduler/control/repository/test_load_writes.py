"""Which changes of a model's files are its own loads'."""

from __future__ import annotations

from dataclasses import replace

from nereid.pb import model_config_pb2
from nereid_scheduler.control.repository.load_writes import LoadWrites
from nereid_scheduler.core.models.found_model import FoundModel


class Directory:
    """A model's directory, and its loads."""

    def __init__(self) -> None:
        self.writes = LoadWrites()
        self.states = {"model.py": 1}

    def write(self, *names: str) -> None:
        for name in names:
            self.states[name] = self.states.get(name, 0) + 1

    def found(self) -> FoundModel:
        files = frozenset((name, str(state)) for name, state in self.states.items())
        return FoundModel("m", versions=(1,), files=files)

    def load(self, *written: str) -> bool:
        """A load while which these are written; whether they are its own."""
        before = self.found()
        self.write(*written)
        return self.writes.add_load(before, self.found())


def test_what_changes_in_two_loads_and_not_between_them_is_theirs() -> None:
    directory = Directory()
    assert not directory.load("cache")
    assert directory.load("cache")
    assert directory.load("cache")


def test_a_change_by_a_user_during_a_load_is_noticed() -> None:
    directory = Directory()
    directory.load("cache")
    assert not directory.load("cache", "model.py")
    assert directory.load("cache")
    assert not directory.load("cache", "model.py")


def test_what_somebody_else_writes_as_well_is_not_the_loads() -> None:
    """As a file that is being copied for longer than a load takes."""
    directory = Directory()
    for _ in range(3):
        assert not directory.load("weights")
        directory.write("weights")
    assert not directory.load("weights")
    assert directory.load("weights")


def test_a_change_of_another_file_needs_no_more_loads() -> None:
    directory = Directory()
    directory.load("cache")
    directory.write("model.py")
    assert directory.load("cache")


def test_a_load_that_writes_nothing_has_no_files_of_its_own() -> None:
    directory = Directory()
    directory.load("cache")
    assert not directory.load()
    assert not directory.load("cache")


def test_files_may_have_other_names_each_time() -> None:
    directory = Directory()
    assert not directory.load("tmp1")
    assert directory.load("tmp2")
    assert not directory.load("model.py")
    assert not directory.load("tmp3")


def test_a_file_that_a_user_deletes_during_a_load_is_noticed() -> None:
    directory = Directory()
    directory.load("cache")
    before = directory.found()
    directory.write("cache")
    del directory.states["model.py"]
    assert not directory.writes.add_load(before, directory.found())


def test_another_configuration_is_no_writing_of_the_load() -> None:
    directory = Directory()
    directory.load("cache")
    before = directory.found()
    directory.write("cache")
    changed = replace(directory.found(), draft=model_config_pb2.ModelConfig(max_batch_size=1))
    assert not directory.writes.add_load(before, changed)


def test_what_was_unloaded_is_forgotten() -> None:
    directory = Directory()
    directory.load("cache")
    directory.writes.forget("m")
    assert not directory.load("cache")
