"""The count of the documentation's words."""

from pathlib import Path

from scripts.check_words import page_words


def test_words_of_pages_are_counted_and_of_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "page.md").write_text("# A title\n\n- `one`, two\n")
    (tmp_path / "figures.json").write_text("{ }")
    readme = tmp_path / "README.md"
    readme.write_text("three\nfour five")
    generated = "<!-- Written by scripts/lists.py from the code. -->\n\nlisted"
    (tmp_path / "folder" / "list.md").write_text(generated)
    (tmp_path / "folder" / "track-record.md").write_text("| seen | found |")
    assert page_words([tmp_path / "folder", readme]) == 6 + 3
