from pathlib import Path
from typing import Any

import pytest

from nereid_analyze.planning import groups_of, job_of
from nereid_analyze.settings import AnalyzeSettings, merged_file
from nereid_analyze.space.candidate import DELAY, MAX_BATCH, Value
from nereid_analyze.space.override import OFF, overridden

_CONFIG: dict[str, Any] = {"name": "m", "backend": "python", "max_batch_size": 8}


def _values(tmp_path: Path, text: str, rows: int = 0) -> dict[str, tuple[Value, ...]]:
    file = tmp_path / "analyzer.yml"
    file.write_text(f"model_repository: {tmp_path}\nprofile_models: [m]\n{text}")
    settings = AnalyzeSettings(config_file=str(file), vary=("instances", "max_batch_size"))
    merged = merged_file(settings)
    job = job_of(groups_of(merged)[0], merged, settings, {"m": _CONFIG}, {"m": rows})
    return {setting.name: setting.values for setting in job.space.settings}


@pytest.mark.parametrize("mode", ["brute", "quick", "optuna"])
def test_all_candidates_of_model_analyzers_file_batch(tmp_path: Path, mode: str) -> None:
    values = _values(tmp_path, f"run_config_search_mode: {mode}")
    assert values[DELAY] == (0,)
    assert overridden(_CONFIG, {DELAY: 0})["dynamic_batching"] is not None


def test_the_adaptive_search_of_a_file_tries_to_batch(tmp_path: Path) -> None:
    values = _values(tmp_path, "run_config_search_mode: adaptive")
    assert values[DELAY][:2] == (OFF, 0)


def test_what_is_listed_alone_is_varied(tmp_path: Path) -> None:
    assert _values(tmp_path, "run_config_search_disable: true") == {}


def test_the_largest_batch_holds_what_clients_have_sent(tmp_path: Path) -> None:
    assert _values(tmp_path, "run_config_search_max_model_batch_size: 16", 5)[MAX_BATCH] == (8, 16)


def test_without_a_file_the_flags_choose() -> None:
    settings = AnalyzeSettings(profile_models=("m",), vary=("instances",))
    file = merged_file(settings)
    job = job_of(groups_of(file)[0], file, settings, {"m": _CONFIG}, {})
    assert DELAY not in {setting.name for setting in job.space.settings}
