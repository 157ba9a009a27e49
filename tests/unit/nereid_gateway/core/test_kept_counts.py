"""The counts of gateways that are killed and start again."""

from pathlib import Path

from nereid_gateway.core.kept_counts import KeptCounts


def test_what_was_shown_is_counted_on_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    first = KeptCounts(path)
    assert first.add_to("a", {"200": 5, "404": 1}) == {"200": 5, "404": 1}
    first.save()
    # Was never shown.
    first.add_to("a", {"200": 9})
    second = KeptCounts(path)
    assert second.add_to("a", {"200": 2, "500": 1}) == {"200": 7, "404": 1, "500": 1}
    assert second.add_to("b", {}) == {}
    second.save()
    assert KeptCounts(path).add_to("a", {}) == {"200": 7, "404": 1, "500": 1}


def test_a_file_that_cannot_be_read_or_written_is_done_without(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text("{")
    kept = KeptCounts(path)
    assert kept.add_to("a", {"x": 1}) == {"x": 1}
    KeptCounts(tmp_path / "no" / "such").save()
