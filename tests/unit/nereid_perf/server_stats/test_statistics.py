"""The server's split, from its statistics before and after."""

from typing import Any

from nereid_perf.server_stats.statistics import (
    composing_models,
    server_splits,
    statistics_by_version,
)


def _entry(requests: int, *, executions: int = 0, version: str = "1", **us: int) -> dict[str, Any]:
    durations = {
        name: {"count": requests, "ns": requests * mean * 1000} for name, mean in us.items()
    }
    return {
        "name": "model",
        "version": version,
        "execution_count": executions or requests,
        "inference_stats": {"success": {"count": requests, "ns": requests * 9000}, **durations},
    }


def test_means_are_of_what_came_in_between() -> None:
    before = statistics_by_version([_entry(10, queue=1000, compute_infer=5)])
    after_entry = _entry(30, executions=14, queue=1000, compute_infer=5)
    after_entry["inference_stats"]["queue"]["ns"] = (10 * 1000 + 20 * 4) * 1000
    (split,) = server_splits(before, statistics_by_version([after_entry]))
    assert (split.model, split.version) == ("model", "1")
    assert (split.requests, split.executions) == (20, 4)
    assert (split.queue_us, split.compute_infer_us) == (4, 5)
    assert split.total_us == 9
    # The server says nothing of them.
    assert split.compute_input_us is split.cache_hit_us is None


def test_numbers_may_be_texts() -> None:
    entry = _entry(4)
    entry["execution_count"] = "2"
    entry["inference_stats"]["success"] = {"count": "4", "ns": "8000"}
    (split,) = server_splits({}, statistics_by_version([entry]))
    assert (split.requests, split.executions, split.total_us) == (4, 2, 2)


def test_versions_without_requests_are_left_out() -> None:
    before = statistics_by_version([_entry(5), _entry(7, version="2")])
    after = statistics_by_version([_entry(5), _entry(8, version="2")])
    assert [split.version for split in server_splits(before, after)] == ["2"]


def test_a_model_that_was_loaded_in_between_counts_from_zero() -> None:
    before = statistics_by_version([_entry(100)])
    (split,) = server_splits(before, statistics_by_version([_entry(3, queue=2)]))
    assert (split.requests, split.queue_us) == (3, 2)


def test_hits_and_misses_of_the_cache() -> None:
    entry = _entry(10)
    entry["inference_stats"] |= {
        "cache_hit": {"count": 6, "ns": 12_000},
        "cache_miss": {"count": 4, "ns": 4000},
    }
    (split,) = server_splits({}, statistics_by_version([entry]))
    assert (split.cache_hits, split.cache_misses) == (6, 4)
    assert (split.cache_hit_us, split.cache_miss_us) == (2, 1)


def test_an_ensembles_models_are_found_through_its_ensembles() -> None:
    def ensemble(*names: str) -> dict[str, Any]:
        return {"ensemble_scheduling": {"step": [{"model_name": name} for name in names]}}

    configs = {"all": ensemble("a", "inner", "a"), "inner": ensemble("b", "all"), "a": {}}
    assert composing_models("all", configs.get) == ["a", "inner", "b"]
    assert composing_models("a", configs.get) == []
