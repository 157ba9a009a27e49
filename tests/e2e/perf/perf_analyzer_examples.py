"""The command lines of perf_analyzer's documentation, of its pages docs/*.md of December 2025."""

from __future__ import annotations

from typing import Final, NamedTuple


class Example(NamedTuple):
    """A command line without the program's name, and the page that shows it."""

    page: str
    flags: str
    # Text of the refusal; empty for what is measured.
    refusal: str = ""
    # Files that have been written afterwards, with a column of each.
    files: tuple[tuple[str, str], ...] = ()


_OPENAI: Final = "--service-kind=openai --endpoint=v1/chat/completions --async"
_OTHER_KIND: Final = "expected one of triton, openai"
EXAMPLES: Final = (
    Example("quick_start", "-m simple"),
    Example("input_data", "-m mymodel -b 4 --shape IMAGE:3,224,224"),
    Example(
        "measurements_metrics",
        "-m inception_graphdef --concurrency-range 1:4 -f perf.csv",
        files=(("perf.csv", "Inferences/Second"),),
    ),
    Example(
        "measurements_metrics",
        "-m resnet50_libtorch --collect-metrics -f output.csv --verbose-csv",
        files=(("output.csv", "Avg latency"),),
    ),
    Example("inference_load_modes", "-m simple --concurrency-range=4"),
    Example("inference_load_modes", "-m simple --request-rate-range=20"),
    Example("inference_load_modes", "-m simple --request-intervals=my_intervals.txt"),
    Example(
        "inference_load_modes",
        "-m model_name -i grpc --async --streaming --profile-export-file profile.json"
        " --periodic-concurrency-range 10:100:30 --request-period 10"
        " --request-parameter max_tokens:256:int",
    ),
    Example("input_data", "-m add_sub --input-data data.json"),
    Example("input_data", "-m shaped --input-data shapes.json --shape INPUT:4,4"),
    Example("input_data", "-m simple --shared-memory=system"),
    Example("input_data", "-m simple --shared-memory=cuda", "expected one of none, system"),
    Example(
        "inference_load_modes",
        "-m simple --fixed-schedule --input-data data.json",
        "--replay sends requests at the times of a file",
    ),
    # The page's data.json is of the form that the refusal names.
    Example(
        "benchmarking",
        f"-m facebook/opt-125m --input-data=data.json {_OPENAI}",
        'data.json: expected {"data": [{"payload": [{...}]}]}',
    ),
    Example(
        "benchmarking",
        "-m facebook/opt-125m --session-concurrency=2 --input-data=data.json"
        f" --profile-export-file=profile_export.json {_OPENAI}",
        "--session-concurrency: '2': chats of an OpenAI server are not measured",
    ),
    Example(
        "benchmarking",
        "-m my_model --service-kind=triton_c_api --triton-server-directory=/opt/tritonserver"
        " --model-repository=/my/model/repository",
        _OTHER_KIND,
    ),
    Example(
        "benchmarking",
        "--service-kind=dynamic_grpc -u=localhost:8001 --input-data=inputs.json"
        " --grpc-method=v1.Simple/Echo",
        "--grpc-method: 'v1.Simple/Echo': other gRPC services are not measured",
    ),
    Example(
        "benchmarking",
        "-m resnet50 --service-kind tfserving -i grpc -b 1 -p 5000 -u localhost:8500",
        _OTHER_KIND,
    ),
    Example(
        "benchmarking",
        "-m resnet50 --service-kind torchserve -i http -u localhost:8080 -b 1 -p 5000"
        " --input-data data.json",
        _OTHER_KIND,
    ),
)
# Of input_data.md: two entries for add_sub, and shapes of an input of any size.
ADD_SUB_DATA: Final = {
    "data": [{"INPUT0": [1] * 16, "INPUT1": [1] * 16}] * 2,
    "validation_data": [{"OUTPUT0": [2] * 16, "OUTPUT1": [0] * 16}] * 2,
}
SHAPES_DATA: Final = {
    "data": [
        {"INPUT": {"content": [1] * 16, "shape": [2, 8]}},
        {"INPUT": {"content": [1] * 16, "shape": [8, 2]}},
        {"INPUT": {"content": [1] * 16}},
        {"INPUT": {"content": [1] * 16, "shape": [4, 4]}},
    ]
}
INTERVALS: Final = "100000\n200000\n500000\n"
