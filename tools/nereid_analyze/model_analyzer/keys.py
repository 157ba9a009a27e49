"""Keys of Model Analyzer's configuration files, and which of them have an effect in Nereid."""

from __future__ import annotations

from typing import Final

# Keys with an effect. As in Model Analyzer, one file may have keys of `profile` and `report`.
USED: Final = frozenset(
    {
        "batch_sizes",
        "bls_composing_models",
        "checkpoint_directory",
        "client_protocol",
        "concurrency",
        "concurrency_sweep_disable",
        "constraints",
        "cpu_only_composing_models",
        "early_exit_enable",
        "ensemble_composing_models",
        "export_path",
        "filename_model_gpu",
        "filename_model_inference",
        "filename_server_only",
        "gpu_output_fields",
        "inference_output_fields",
        "latency_budget",
        "max_percentage_of_search_space",
        "min_percentage_of_search_space",
        "min_throughput",
        "model_repository",
        "num_configs_per_model",
        "objectives",
        "optuna_early_exit_threshold",
        "optuna_max_trials",
        "optuna_min_trials",
        "perf_analyzer_flags",
        "profile_models",
        "reload_model_disable",
        "request_rate",
        "request_rate_search_enable",
        "run_config_profile_models_concurrently_enable",
        "run_config_search_disable",
        "run_config_search_max_binary_search_steps",
        "run_config_search_max_concurrency",
        "run_config_search_max_instance_count",
        "run_config_search_max_model_batch_size",
        "run_config_search_max_request_rate",
        "run_config_search_min_concurrency",
        "run_config_search_min_instance_count",
        "run_config_search_min_model_batch_size",
        "run_config_search_min_request_rate",
        "run_config_search_mode",
        "server_output_fields",
        "triton_grpc_endpoint",
        "triton_http_endpoint",
        "triton_launch_mode",
        "triton_metrics_url",
        "triton_server_flags",
        "use_concurrency_formula",
    }
)
WITHOUT_EFFECT: Final = frozenset(
    {
        "always_report_gpu_metrics",
        "client_max_retries",
        "collect_cpu_metrics",
        "config_file",
        "dcgm_disable",
        "duration_seconds",
        "genai_perf_flags",
        "gpus",
        "model_type",
        "monitoring_interval",
        "num_top_model_configs",
        "output_formats",
        "output_model_repository_path",
        "override_output_model_repository",
        "perf_analyzer_cpu_util",
        "perf_analyzer_max_auto_adjusts",
        "perf_analyzer_path",
        "perf_analyzer_timeout",
        "perf_output",
        "perf_output_path",
        "plots",
        "report_model_configs",
        "skip_detailed_reports",
        "skip_summary_reports",
        "triton_docker_args",
        "triton_docker_image",
        "triton_docker_labels",
        "triton_docker_mounts",
        "triton_docker_shm_size",
        "triton_install_path",
        "triton_output_path",
        "triton_server_environment",
        "triton_server_path",
    }
)
MODEL_KEYS: Final = frozenset(
    {
        "constraints",
        "cpu_only",
        "model_config_parameters",
        "objectives",
        "parameters",
        "perf_analyzer_flags",
        "weighting",
    }
)
MODEL_KEYS_WITHOUT_EFFECT: Final = frozenset(
    {"genai_perf_flags", "triton_docker_args", "triton_server_environment", "triton_server_flags"}
)
PARAMETERS: Final = frozenset({"batch_sizes", "concurrency", "request_rate"})
# Flags that nereid perf shares with perf_analyzer. The search itself sets load, windows and server.
PERF_FLAGS: Final = frozenset(
    {
        "grpc-compression-algorithm",
        "http-header",
        "input-data",
        "max-threads",
        "model-version",
        "request-distribution",
        "shape",
        "ssl-grpc-certificate-chain-file",
        "ssl-grpc-private-key-file",
        "ssl-grpc-root-certifications-file",
        "ssl-grpc-use-ssl",
        "ssl-https-ca-certificates-file",
        "ssl-https-client-certificate-file",
        "streaming",
        "string-length",
    }
)
PERF_FLAG_NAMES: Final = {"http-header": "header", "max-threads": "workers"}
INFERENCE_FIELDS: Final = (
    "model_name",
    "batch_size",
    "concurrency",
    "model_config_path",
    "instance_group",
    "max_batch_size",
    "satisfies_constraints",
    "perf_throughput",
    "perf_latency_p99",
)
GPU_FIELDS: Final = (
    "model_name",
    "gpu_uuid",
    "batch_size",
    "concurrency",
    "model_config_path",
    "instance_group",
    "satisfies_constraints",
    "gpu_used_memory",
    "gpu_utilization",
    "gpu_power_usage",
)
SERVER_FIELDS: Final = (
    "model_name",
    "gpu_uuid",
    "gpu_used_memory",
    "gpu_utilization",
    "gpu_power_usage",
)
