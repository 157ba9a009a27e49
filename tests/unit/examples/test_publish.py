"""Publishing a model: whole or not at all, and never over somebody else's."""

from pathlib import Path

import pytest

from examples.zoo.publish import ForeignModelError, Make, is_made, publish


def write(text: str) -> Make:
    def make(folder: Path) -> None:
        (folder / "config.pbtxt").write_text(text)

    return make


def test_a_made_model_is_there_with_its_revision(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "digits"
    assert not is_made(folder, 1)

    publish(folder, 1, write("one"))

    assert (folder / "config.pbtxt").read_text() == "one"
    assert is_made(folder, 1)
    assert not is_made(folder, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_later_revision_replaces_an_earlier_one(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "digits"
    publish(folder, 1, write("one"))
    (folder / "left over").touch()

    publish(folder, 2, write("two"))

    assert is_made(folder, 2)
    assert (folder / "config.pbtxt").read_text() == "two"
    assert not (folder / "left over").exists()


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_run_leaves_nothing_behind(
    tmp_path: Path, interruption: type[BaseException]
) -> None:
    def make(folder: Path) -> None:
        (folder / "config.pbtxt").touch()
        raise interruption

    with pytest.raises(interruption):
        publish(tmp_path / "models" / "digits", 1, make)

    assert list((tmp_path / "models").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_model_of_that_name_made_by_somebody_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "config.pbtxt").write_text("precious")

    with pytest.raises(ForeignModelError, match="not an example model"):
        publish(folder, 1, write("ours"))

    assert (folder / "config.pbtxt").read_text() == "precious"
