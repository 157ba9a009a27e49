import pytest

from nereid_analyze.model_analyzer.config_file import ConfigFileError, parse_config_file

_WHOLE = """
model_repository: /models
triton_launch_mode: remote
client_protocol: http
export_path: out
run_config_search_mode: optuna
run_config_search_max_instance_count: 3
optuna_max_trials: 50
latency_budget: 15
objectives: [perf_throughput]
profile_models:
  - plain
  - tuned:
      cpu_only: true
      weighting: 3
      objectives: {perf_latency_p99: 5, perf_throughput: 10}
      constraints: {perf_throughput: {min: 100}}
      parameters:
        concurrency: {start: 2, stop: 8, step: 2}
        batch_sizes: 1,4
      model_config_parameters:
        max_batch_size: [4, 8]
        dynamic_batching: {preferred_batch_size: [4, 8], max_queue_delay_microseconds: [1, 2]}
        instance_group: [{kind: KIND_GPU, count: [1, 2]}, {kind: KIND_CPU, count: 1}]
      perf_analyzer_flags: {shape: ["x:3", "y:2"], percentile: 95, http-header: "a: b"}
"""

_QUICK = """
run_config_search_mode: quick
profile_models: {a: {model_config_parameters: {max_batch_size: 1}}}
"""


def test_a_file_is_read_as_it_is() -> None:
    found = parse_config_file(_WHOLE)
    plain, tuned = found.models
    assert (found.mode, found.instances, found.most_trials) == ("optuna", (1, 3), 50)
    assert plain.alternatives is None
    assert [each.text for each in plain.goal.constraints] == ["perf_latency_p99 <= 15"]
    assert tuned.cpu_only
    assert tuned.concurrency == (2, 4, 6, 8)
    assert tuned.batch_sizes == (1, 4)
    assert dict(tuned.goal.objectives) == {"perf_latency_p99": 5, "perf_throughput": 10}
    assert {each.text for each in tuned.goal.constraints} == {
        "perf_throughput >= 100",
        "perf_latency_p99 <= 15",
    }
    assert tuned.flags == ("--shape=x:3", "--shape=y:2", "--header=a: b")
    assert tuned.alternatives == {
        "max_batch_size": [4, 8],
        # Sizes are one value, a repeated one; delays are two.
        "dynamic_batching": [
            {"preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 1},
            {"preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 2},
        ],
        "instance_group": [
            [{"kind": "KIND_GPU", "count": 1}, {"kind": "KIND_CPU", "count": 1}],
            [{"kind": "KIND_GPU", "count": 2}, {"kind": "KIND_CPU", "count": 1}],
        ],
    }
    assert found.warnings == (
        "tuned: perf_analyzer_flags: percentile has no effect here: the search decides",
    )


def test_an_empty_file_has_model_analyzers_defaults() -> None:
    found = parse_config_file("")
    assert found.mode == "brute"
    assert (found.instances, found.batches, found.concurrency) == ((1, 5), (1, 128), (1, 1024))
    assert (found.protocol, found.launch_mode) == ("grpc", "local")
    assert found.filename_inference == "metrics-model-inference.csv"


@pytest.mark.parametrize("models", ["a,b", "[a, b]", "{a: , b: }", "[a, {b: {cpu_only: false}}]"])
def test_models_are_named_in_several_ways(models: str) -> None:
    found = parse_config_file(f"profile_models: {models}")
    assert [each.name for each in found.models] == ["a", "b"]


def test_keys_that_are_unknown_or_mean_nothing_are_named() -> None:
    found = parse_config_file(
        "run_config_serch_mode: quick\ntriton_docker_image: x\nreport_model_configs: [a_config_0]\n"
        "profile_models: {a: {cpu_onli: true, parameters: {rate: 3}}}"
    )
    assert found.warnings == (
        "unknown key 'run_config_serch_mode'; did you mean 'run_config_search_mode'?",
        "triton_docker_image has no effect here",
        "report_model_configs has no effect here",
        "a: unknown key 'cpu_onli'; did you mean 'cpu_only'?",
        "a: parameters: unknown key 'rate'",
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: [", "this is no YAML"),
        ("- a", "expected keys and their values"),
        ("run_config_search_mode: fast", "expected one of adaptive, brute, quick, optuna"),
        ("triton_launch_mode: docker", "only remote"),
        (
            "run_config_search_min_concurrency: 9\nrun_config_search_max_concurrency: 3",
            "run_config_search_min_concurrency 9 is above run_config_search_max_concurrency 3",
        ),
        ("constraints: {perf_throughput: {most: 3}}\nprofile_models: a", "expected min or max"),
        ("objectives: [speed]\nprofile_models: a", "a: objectives: 'speed' is no metric"),
        (
            "latency_budget: 5\nconstraints: {perf_latency_p99: {max: 6}}\nprofile_models: a",
            "both limit perf_latency_p99",
        ),
        (
            "profile_models: {a: {parameters: {concurrency: 1, request_rate: 5}}}",
            "a: give concurrency or request_rate",
        ),
        (
            _QUICK,
            "quick chooses itself",
        ),
        (
            "profile_models: {a: {model_config_parameters: {batch: 1}}}",
            "'batch' is no field of ModelConfig",
        ),
        ("run_config_profile_models_concurrently_enable: true", "needs run_config_search_mode"),
        ("profile_models: a,a", "a is there twice"),
        ("weighting: 3", "weighting is of a model"),
        ("optuna_min_trials: 300", "optuna_min_trials is above"),
        ("early_exit_enable: maybe", "early_exit_enable: expected true or false"),
        ("num_configs_per_model: many", "expected a whole number"),
    ],
)
def test_what_contradicts_itself_is_an_error(text: str, error: str) -> None:
    with pytest.raises(ConfigFileError, match=error):
        parse_config_file(text)


def test_all_errors_are_said_at_once() -> None:
    with pytest.raises(ConfigFileError) as caught:
        parse_config_file("triton_launch_mode: docker\nrun_config_search_mode: fast")
    assert len(str(caught.value).splitlines()) == 2
