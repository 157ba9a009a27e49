"""Archives of environments, and such as only an attacker makes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from nereid_executor.backends.python.supervisor.archives import UnpackError, is_archive, unpack

Member = tuple[str, Any]
_KINDS = {
    "symlink": tarfile.SYMTYPE,
    "link": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "block": tarfile.BLKTYPE,
    "fifo": tarfile.FIFOTYPE,
}


def packed(*members: Member, archive_of: bytes = b"") -> bytes:
    """An archive of files (a name, bytes), directories (a name, None), and others (kind:name).

    archive_of: what the members are appended to.
    """
    buffer = io.BytesIO(archive_of)
    with tarfile.open(fileobj=buffer, mode="a" if archive_of else "w") as archive:
        for name, content in members:
            kind, _, rest = name.partition(":")
            info = tarfile.TarInfo(rest or name)
            info.mode, info.mtime = 0o6755, 1_600_000_000
            if rest:
                info.type = _KINDS[kind]
                info.linkname = content or ""
            elif content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            archive.addfile(info, None if rest or content is None else io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[bytes], Path]:
    def unpack_(content: bytes) -> Path:
        (tmp_path / "a.tar").write_bytes(content)
        directory = tmp_path / "there"
        directory.mkdir()
        unpack(tmp_path / "a.tar", directory)
        return directory

    return unpack_


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_an_environment(unpacked: Any, compress: Callable[[bytes], bytes]) -> None:
    archive = packed(
        (".", None),
        ("./bin/tool", b"#!"),
        ("./bin", None),
        ("lib/" + "deep/" * 40 + "é" * 60, b"x" * 3_000_000),
        ("symlink:bin/python", "/usr/bin/python3"),
        ("symlink:lib64", "lib"),
        ("symlink:lib/back", "../bin/./tool"),
    )
    more = packed(("lib", None), ("link:lib/same", "bin/tool"), ("empty", b""), archive_of=archive)
    there = unpacked(compress(more))
    tool = there / "bin" / "tool"
    assert (tool.read_bytes(), tool.stat().st_mode & 0o7777) == (b"#!", 0o700)
    assert tool.stat().st_mtime == 1_600_000_000
    assert (there / "bin" / "python").readlink() == Path("/usr/bin/python3")
    assert (there / "lib" / "back").read_bytes() == b"#!"
    assert (there / "lib" / "same").stat().st_ino == tool.stat().st_ino
    assert (there / "empty").read_bytes() == b""
    assert sum(path.stat().st_size for path in (there / "lib").rglob("é*")) == 3_000_000


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("/etc/x", b"")], "leads out"),
        ([("../x", b"")], "leads out"),
        ([("a/../../x", b"")], "leads out"),
        ([("a/..", None)], "leads out"),
        ([("symlink:a", "../x")], "leads out"),
        ([("symlink:a/b", "../../x")], "leads out"),
        ([("symlink:a", "b/../../x")], "leads out"),
        ([("link:a", "../x")], "leads out"),
        ([("link:a", "/etc/passwd")], "leads out"),
        ([("link:a", "b")], "no file before it"),
        ([("symlink:b", "/etc/passwd"), ("link:a", "b")], "no file before it"),
        ([("d", None), ("link:a", "d")], "no file before it"),
        ([("symlink:a", "/tmp"), ("a/x", b"")], "below a link"),
        ([("symlink:a", "/tmp"), ("a/b/x", b"")], "below a link"),
        ([("symlink:a", "/tmp"), ("a", None)], "comes twice"),
        ([("symlink:a", "/tmp/x"), ("a", b"")], "comes twice"),
        ([("symlink:a", "/tmp/x"), ("./a", b"")], "comes twice"),
        ([("a", b""), ("a", b"x")], "comes twice"),
        ([("a", b""), ("symlink:a", "b")], "comes twice"),
        ([("a/b", b""), ("symlink:a", "b")], "comes twice"),
        ([("a", b""), ("a/b", b"")], "below a file"),
        ([("a/b", b""), ("a", b"")], "comes twice"),
        ([("device:a", None)], "neither a file"),
        ([("block:a", None)], "neither a file"),
        ([("fifo:a", None)], "neither a file"),
        ([(".", b"")], "comes twice"),
    ],
    ids=str,
)
def test_members_that_are_refused(unpacked: Any, members: list[Member], reason: str) -> None:
    with pytest.raises(UnpackError, match=reason):
        unpacked(packed(("good", b"x"), *members))


def _header(**fields: Any) -> bytes:
    info = tarfile.TarInfo("a")
    for name, value in fields.items():
        setattr(info, name, value)
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (_header(size=1 << 50), "more space than there is"),
        (_header(size=1 << 20) + bytes(512), "cut off|unexpected end|end of data"),
        (_header(size=-1), "more space|negative|header"),
        # Names that would be read into memory at once.
        (_header(type=tarfile.GNUTYPE_LONGNAME, size=1 << 40), "a header of"),
        (_header(type=tarfile.XHDTYPE, size=1 << 40), "a header of"),
        ((_header(type=tarfile.XGLTYPE, size=512) + bytes(512)) * 5000, "recursion|header"),
        (packed(("a", b"x"))[:700], "cut off|unexpected end"),
        (gzip.compress(packed(("a", os.urandom(9000))))[:-5000], "ended before|cut off|end"),
        (b"#!/bin/sh\n", "header|truncated|empty|file"),
        (b"", "empty"),
    ],
)
def test_archives_that_are_damaged(unpacked: Any, content: bytes, reason: str) -> None:
    with pytest.raises(UnpackError, match=f"(?i){reason}"):
        unpacked(content)


def test_members_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(packed(*[("a", None)] * 4))
    for name, most in (("enough", 4), ("few", 3)):
        (tmp_path / name).mkdir()
        with pytest.raises(UnpackError, match="too many") if most == 3 else nullcontext():
            unpack(tmp_path / "a.tar", tmp_path / name, most)


def test_what_is_an_archive(tmp_path: Path) -> None:
    archive, program = tmp_path / "archive", tmp_path / "program"
    archive.write_bytes(gzip.compress(packed(("a", b""))))
    program.write_bytes(b"\x7fELF" + bytes(2000))
    assert (is_archive(archive), is_archive(program)) == (True, False)
    assert not is_archive(tmp_path / "none")
