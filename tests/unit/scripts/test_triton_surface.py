"""The names in Triton's sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scripts.triton_surface import Sources, surface

PROTO = """
syntax = "proto3";
package inference;
message ModelConfig {
  enum Kind { KIND_ONE = 0; }
  message Inner { string text = 1; }
  string name = 1;
  map<string, string> labels = 2;
}
"""
FILES = {
    "TRITON_VERSION": "2.99.0\n",
    "src/command_line_parser.cc": '{OPTION_ID, "id", x},\n {OPTION_A,\n  "http-port", x}',
    "src/http_server.cc": 'a_regex_(R"(/v2/m/([^/]+)(?:/(ready|trace/x))?)"), '
    'if (uri->path->full) == "/v2/logging")',
    "src/http_server.h": 'api_regex_(R"(/metrics/?)")',
    "src/sagemaker_server.h": 'models_regex_(R"(/models(?:/)?([^/]+)?(/invoke)?)"), '
    'path_regex_(R"((\\/opt\\/ml)\\/x)")',
    "src/metrics.cc": '.Name("nv_count")',
    "src/metric_model_reporter.h": '{"nv_first_ms", kFirst}',
    "src/onnxruntime.cc": 'params.Find("arena", &v); if (param_key == "trt_x") {}'
    'cmdline.Find("batch-size", &v);',
    "src/python_be.cc": 'cmdline.Find("pool-size", &v)',
    "src/openvino.cc": 'ReadParameter(params, "PATH", &v); ParseBoolParameter(\n  "PAD", params);'
    'ParseParameter("HINT", params); cmd_json.Find("max-batch", &v)',
    "src/model_state.cc": 'GetParameterValue(\n  params, "strategy", &v)',
    "src/tensorrt.cc": 'cmdline.Find("plugins", &v)',
    "src/pt/model_state.cc": 'ParseParameter(params, "MODE", &v)',
    "src/pt2/model_state.cc": 'ParseParameter(\n  parameters, "CUDNN", &v)',
    "src/model.py": 'settings = ["NUM_THREADS"]; if setting in config["parameters"]:',
    "python/openai/openai_frontend/main.py": 'add_argument(\n "--host",',
    "python/openai/openai_frontend/frontend/a.py": '@router.get("/v1/models/{name}", x=1)',
    "protobuf/model_config.proto": PROTO,
    "protobuf/grpc_service.proto": 'syntax = "proto3"; message M {} service S { rpc Do(M) '
    "returns (M); }",
    "protobuf/health.proto": 'syntax = "proto3"; message H {} service Health { rpc Check(H) '
    "returns (H); }",
}


def test_names_are_read_from_a_repositorys_newest_commit(tmp_path: Path) -> None:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "x")):
        subprocess.run(("git", "-C", str(tmp_path), *command), check=True)
    assert surface(Sources([str(tmp_path)])) == {
        "version": "2.99.0",
        "flags": ["http-port", "id"],
        "routes": [
            "/metrics",
            "/models",
            "/models/{}",
            "/models/{}/invoke",
            "/v2/logging",
            "/v2/m/{}",
            "/v2/m/{}/ready",
            "/v2/m/{}/trace/x",
        ],
        "methods": ["Health.Check", "S.Do"],
        "openai_flags": ["host"],
        "openai_routes": ["/v1/models/{}"],
        "metrics": ["nv_count", "nv_first_ms"],
        "fields": [
            "ModelConfig.Inner.text",
            "ModelConfig.Kind.KIND_ONE",
            "ModelConfig.labels",
            "ModelConfig.name",
        ],
        "parameters": {
            "onnxruntime": ["arena", "batch-size", "trt_x"],
            "openvino": ["HINT", "PAD", "PATH", "max-batch"],
            "python": ["pool-size"],
            "pytorch": ["CUDNN", "MODE", "NUM_THREADS"],
            "tensorrt": ["plugins", "strategy"],
        },
    }
