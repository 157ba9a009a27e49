"""The command lines of perf_analyzer, which `nereid perf` takes as they are."""

from pathlib import Path

import pytest

from nereid_perf.inputs.plan import ModelPlan
from nereid_perf.run_settings import RunSettings, read_run_settings

# The flags of perf_analyzer --help, each with a value that it takes there; the deprecated ones too.
FLAGS = (
    *("-m x", "-x 1", "--bls-composing-models=a:3,b", "--model-signature-name=serving_default"),
    *(
        "--service-kind=triton",
        "--service-kind openai",
        "--endpoint=v1/chat/completions",
        "-v",
        "-v -v",
    ),
    *("-a", "--async", "--sync", "-p 5000", "--measurement-interval=5000"),
    *("--measurement-mode=count_windows", "--measurement-request-count=50"),
    *("--concurrency-range=1:4:1", "--periodic-concurrency-range=1:4:1", "--request-period=10"),
    *("--request-parameter=max_tokens:256:int", "--request-rate-range=1:2:0.5"),
    *("--request-distribution=poisson", "--serial-sequences", "--num-of-sequences=4"),
    *("--binary-search --concurrency-range=1:4 -l 9", "-l 100", "--latency-threshold=100"),
    *("--max-threads=16", "-s 10", "--stability-percentage=10", "-r 10", "--max-trials=10"),
    *("--percentile=95", "--percentile -1", "--request-count=0", "-t 4", "-c 8", "-t 2 -c 8 -d"),
    *("-b 2", "--input-data zero", "--shared-memory system", "--output-shared-memory-size=102400"),
    *("--shape=name:1,2,3", "--sequence-length=20", "--sequence-length-variation=20"),
    *("--sequence-id-range=1:9", "--string-length=128", "--string-data=abc", "-z"),
    *("--input-tensor-format=binary", "--output-tensor-format=json", "--data-directory=files"),
    *("-u localhost:8000", "-i gRPC", "-i HTTP", "--ssl-grpc-use-ssl", "--ssl-grpc-use-ssl true"),
    *("--ssl --ssl-grpc-root-certifications-file=a", "--ssl --ssl-grpc-private-key-file=a"),
    *("--ssl --ssl-grpc-certificate-chain-file=a", "--ssl-https-verify-peer 1"),
    *("--ssl-https-verify-host=2", "--ssl --ssl-https-ca-certificates-file=a"),
    *("--ssl --ssl-https-client-certificate-file=a", "--ssl-https-client-certificate-type PEM"),
    *("--ssl --ssl-https-private-key-file=a", "--ssl-https-private-key-type PEM", "-f report.csv"),
    *("--profile-export-file=profile.json", "-H Header:Value", "-i grpc --streaming"),
    *("--grpc-compression-algorithm=gzip", "--trace-level TIMESTAMPS", "--trace-rate 1000"),
    *("--trace-count=-1", "--log-frequency=0", "--triton-server-directory=/opt/tritonserver"),
    *("--model-repository=/models", "--verbose-csv", "--collect-metrics --verbose-csv"),
    *("--metrics-url=localhost:8002/metrics", "--metrics-interval=1000", "--enable-mpi"),
)


def _read(*argv: str) -> RunSettings:
    return read_run_settings(argv, "nereid perf")


def _input_data(settings: RunSettings) -> tuple[str, ...]:
    (model,) = settings.inputs.input_plan("http").models
    assert isinstance(model, ModelPlan)
    return model.input_data


@pytest.mark.parametrize("flags", FLAGS)
def test_each_flag_of_perf_analyzer_is_known(
    flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _read("-m", "x", *flags.split())


def test_a_file_of_intervals_is_known(tmp_path: Path) -> None:
    (tmp_path / "intervals").write_text("10\n20\n")
    _read("-m", "x", f"--request-intervals={tmp_path / 'intervals'}")


def test_one_line_names_what_has_no_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    _read("-m", "x", "--max-threads=16", "--serial-sequences", "--ssl-https-verify-peer", "1")
    assert capsys.readouterr().err == (
        "nereid perf: taken from perf_analyzer, to no effect:"
        " --max-threads, --serial-sequences, --ssl-https-verify-peer\n"
    )
    _read("-m", "x", "--async", "-t", "4")
    assert capsys.readouterr().err == (
        "nereid perf: warning: a flag of older versions, read as --concurrency-range 4\n"
    )


def test_older_forms_mean_what_they_meant() -> None:
    assert _read("-m", "x", "-t", "4").questions.concurrency_range == "4"
    assert _read("-m", "x", "-c", "8").questions.concurrency_range == "1:8"
    assert _input_data(_read("-m", "x", "-z")) == ("zero",)
    assert _input_data(_read("-m", "x", "--data-directory", "files")) == ("files",)
    assert _read("-m", "x", "--percentile=-1").measurement.windows.percentile is None
    assert _read("-m", "x", "-i", "gRPC").target.server.protocol == "grpc"


def test_trace_settings_are_those_of_the_server() -> None:
    given = _read("-m", "x", "--trace-level=TIMESTAMPS", "--trace-level=TENSORS", "--trace-rate=9")
    assert given.perf_analyzer.trace_settings == {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": "9",
    }
    assert not _read("-m", "x").perf_analyzer.trace_settings


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ("", ""),
        ("--service-kind=openai", "/v1/chat/completions"),
        ("--service-kind=openai --endpoint=v1/embeddings", "/v1/embeddings"),
        ("--endpoint=rerank", "/v1/rerank"),
        # As in perf_analyzer, where the endpoint counts with openai alone.
        ("--service-kind=triton --endpoint=v1/chat/completions", ""),
    ],
)
def test_the_service_and_its_endpoint(flags: str, path: str) -> None:
    assert _read("-m", "x", *flags.split()).target.path == path


@pytest.mark.parametrize(
    "flags",
    ["--service-kind=torchserve", "--ssl-https-private-key-type=DER", "--shared-memory=cuda"],
)
def test_what_cannot_be_done_is_refused(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        _read("-m", "x", flags)
    assert refused.value.code == 2
    assert "expected" in capsys.readouterr().err
