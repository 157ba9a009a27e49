"""Resources that the site's pages would fetch from other hosts."""

from pathlib import Path

from scripts.build_site import fetched_elsewhere


def test_what_is_fetched_from_other_hosts_is_found_and_links_are_not(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "page.html").write_text(
        '<link rel="stylesheet" href="https://fonts.example/a.css">'
        '<script src="//cdn.example/b.js">'
        '</script><img src="plot.svg"><a href="https://elsewhere.example">a link</a>'
    )
    assert fetched_elsewhere(tmp_path) == [
        "folder/page.html: https://fonts.example/a.css",
        "folder/page.html: //cdn.example/b.js",
    ]
