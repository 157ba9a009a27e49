"""The watched file with models' traffic: what cannot be used changes nothing, and harms nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from nereid.core.files.file_watch import FileError, FileWatch
from nereid_scheduler.control.sources.traffic_file import read_traffic_file
from nereid_scheduler.core.models.traffic_table import FileSetting

_GOOD = '{"m": {"weights": {"1": 1}}}'
_OTHER = '{"m": {"weights": {"1": 1, "2": 3}}}'
_MAX_LOGGED = 10_000


def _weights(value: str) -> str:
    return f'{{"m": {{"weights": {{"1": {value}}}}}}}'


TEXTS = {
    "NaN": (_weights("NaN"), "integers from 0 to 1000000"),
    "Infinity": (_weights("Infinity"), "integers from 0 to 1000000"),
    "a negative weight": (_weights("-1"), "integers from 0 to 1000000"),
    "a huge weight": (_weights("1e308"), "integers from 0 to 1000000"),
    "a weight of a million digits": (_weights("1" * 1_000_000), "no JSON"),
    "a version that is no number": ('{"m": {"weights": {"\\ud800": 1}}}', "version"),
    "10 MB of spaces": ('{"m": ' + " " * 10_000_000 + "}", "more than 1048576 bytes"),
    "a long name": (json.dumps({"x" * 1_000_000: 1}), "'x{256}'"),
    "many mistakes": (
        json.dumps({f"model {number}": 1 for number in range(50_000)}),
        "further models were not read",
    ),
    "brackets": ("[" * 1_000_000, "nested too deeply"),
    "half of the file": (_OTHER[: len(_OTHER) // 2], "no JSON"),
    "an empty file": ("", "no JSON"),
    "control characters": ('{"\\u001b[2J\\n": 1}', "expected an object"),
}


def _loop(path: Path) -> None:
    other = path.with_name("other")
    path.symlink_to(other)
    other.symlink_to(path)


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a directory": (Path.mkdir, "not a regular file"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "links in a circle": (_loop, "symbolic links"),
    "a link to nothing": (lambda path: path.symlink_to("none"), "No such file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "nothing": (lambda path: None, "No such file"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_refused_with_few_words(tmp_path: Path, name: str) -> None:
    text, reason = TEXTS[name]
    path = tmp_path / "traffic.json"
    path.write_text(text)
    with pytest.raises(FileError, match=reason) as caught:
        read_traffic_file(str(path))
    assert len(str(caught.value)) < _MAX_LOGGED


class Errors(logging.Handler):
    """Errors that are logged, which a test can wait for."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.put_nowait(record.getMessage())


@pytest.mark.parametrize("name", [*TEXTS, *PLACES])
async def test_a_mistake_keeps_what_was_there(tmp_path: Path, name: str) -> None:
    path, log = tmp_path / "traffic.json", logging.getLogger("nereid.core.files.file_watch")
    path.write_text(_GOOD)
    changes: asyncio.Queue[Mapping[str, FileSetting]] = asyncio.Queue()
    errors = Errors()
    log.addHandler(errors)
    watch = FileWatch(
        "--traffic-file",
        str(path),
        read_traffic_file(str(path)),
        read=read_traffic_file,
        on_change=changes.put_nowait,
        describe=str,
        interval_s=0.001,
    )
    watch.start()
    try:
        async with asyncio.timeout(30):
            path.unlink()
            if name in TEXTS:
                text, reason = TEXTS[name]
                path.write_text(text)
            else:
                make, reason = PLACES[name]
                make(path)
            message = await errors.messages.get()
            while reason not in message and name in PLACES:
                # It looked between the two.
                message = await errors.messages.get()
            assert len(message) < _MAX_LOGGED
            assert changes.empty()
            # Mended at once, as by an editor that renames.
            mended = tmp_path / "mended"
            mended.write_text(_OTHER)
            if path.is_dir():
                path.rmdir()
            mended.replace(path)
            assert await changes.get() == read_traffic_file(str(path))
            assert changes.empty()
    finally:
        await watch.close()
        log.removeHandler(errors)
