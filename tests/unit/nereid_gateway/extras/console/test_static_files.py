"""Files of the page, and how they are served."""

from __future__ import annotations

from pathlib import Path

from nereid_gateway.extras.console.static_files import package_files, read_files


def test_what_is_served_and_how(tmp_path: Path) -> None:
    (tmp_path / "page.js").write_text("1")
    (tmp_path / "notes.py").write_text("2")
    (tmp_path / "folder.css").mkdir()
    found = read_files(tmp_path)
    assert list(found) == ["page.js"]
    file = found["page.js"]
    assert file.content_type == b"text/javascript; charset=utf-8"
    lines = file.lines.decode().split("\r\n")
    assert f"ETag: {file.etag.decode()}" in lines
    assert "X-Content-Type-Options: nosniff" in lines
    (policy,) = [each for each in lines if each.startswith("Content-Security-Policy: ")]
    for rule in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    (tmp_path / "page.js").write_text("3")
    assert read_files(tmp_path)["page.js"].etag != file.etag


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert read_files(tmp_path / "none") == {}
    # Whatever the package has is served.
    assert all(read_files(package_files()).values())
