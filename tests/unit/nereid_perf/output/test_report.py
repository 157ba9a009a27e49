from pathlib import Path

import pytest

from nereid_perf.output.report import report, write_outputs
from nereid_perf.output.result_file import ResultFileError, read_result, write_result
from nereid_perf.output.settings import OutputSettings
from tests.support import perf_results


def test_a_run_s_outputs(tmp_path: Path) -> None:
    settings = OutputSettings(
        csv=str(tmp_path / "f.csv"),
        json=str(tmp_path / "f.json"),
        html=str(tmp_path / "f.html"),
        png=str(tmp_path / "f.png"),
    )
    written = write_outputs(perf_results.sweep(), settings)
    assert [each.name for each in written] == ["f.json", "f.csv", "f.html", "f.png"]
    assert all(each.stat().st_size > 100 for each in written)
    assert len(read_result(tmp_path / "f.json").servers[0].measurements) == 6


def test_nothing_is_written_unless_asked_for(tmp_path: Path) -> None:
    assert write_outputs(perf_results.sweep(), OutputSettings()) == []


def test_a_comparison_has_a_table_for_each_side(tmp_path: Path) -> None:
    settings = OutputSettings(csv=str(tmp_path / "f.csv"))
    written = write_outputs(perf_results.comparison(), settings)
    assert [each.name for each in written] == ["f.csv", "f-2.csv"]


@pytest.mark.parametrize("folders", [("", ""), ("one", "two")])
def test_a_report_of_several_files(tmp_path: Path, folders: tuple[str, str]) -> None:
    names = ("before", "after") if folders == ("", "") else ("same", "same")
    paths = []
    for folder, name in zip(folders, names, strict=True):
        (tmp_path / folder).mkdir(exist_ok=True)
        paths.append(tmp_path / folder / f"{name}.json")
        write_result(perf_results.sweep(), paths[-1])
    written = report(paths, OutputSettings(html=str(tmp_path / "f.html")))
    assert written == [tmp_path / "f.html"]
    text = written[0].read_text()
    for path in paths:
        assert (path.stem if folders == ("", "") else str(path)) in text


def test_a_report_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(ResultFileError, match="No such file"):
        report([tmp_path / "none.json"], OutputSettings())
    write_result(perf_results.sweep(), tmp_path / "r.json")
    with pytest.raises(ResultFileError, match="writes no --json"):
        report([tmp_path / "r.json"], OutputSettings(json="x"))
