"""`nereid analyze` against real meshes. What it finds is the machine's business; what it leaves
behind is not.
"""

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from nereid_analyze import command
from nereid_perf.endpoint import Endpoint
from nereid_perf.server import Server
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import e2e_models

pytestmark = pytest.mark.slow

_CONFIG = """\
# The author's words.
max_batch_size: 16
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { }
"""
_MISSED, _USAGE, _INTERRUPTED = 3, 2, 130
_QUICK = (
    *("--window=0.05", "--rounds=1", "--vary=instances,max_batch_size", "--max-instances=2"),
    "--max-candidates=3",
)


_EXPLICIT = ("--model-control-mode=explicit", "--load-model=doubler")


def _save(root: Path) -> Path:
    for name in ("doubler", "tripler"):
        e2e_models.save_scaler(root, name, 2, _CONFIG)
    return root


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return _save(tmp_path / "repository")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Each search leaves it as it was."""
    root = _save(tmp_path_factory.mktemp("mesh") / "repository")
    with running(root, root.parent / "log", *_EXPLICIT) as found:
        yield found


# What a shell has put into the background ignores SIGINT, and so do its children.
_PROGRAM = """
import signal
from nereid.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


def _argv(*flags: str) -> list[str]:
    return [sys.executable, "-c", _PROGRAM, "analyze", *flags]


def _run(*flags: str) -> tuple[int, str]:
    result = subprocess.run(_argv(*flags), capture_output=True, text=True, timeout=300, check=False)
    return result.returncode, result.stdout + result.stderr


def _config(mesh: Mesh, model: str = "doubler") -> dict[str, Any]:
    found = Server(Endpoint("http", mesh.http)).config(model)
    assert found is not None
    return found


def test_a_search_reports_and_leaves_the_server_as_it_was(mesh: Mesh, tmp_path: Path) -> None:
    before = _config(mesh)
    flags = ("-m", "doubler", "-u", mesh.http, "-e", str(tmp_path), *_QUICK,
             f"--metrics-url=127.0.0.1:{mesh.metrics_port}/metrics",
             "--vary=instances", "--max-concurrency=1")  # fmt: skip
    code, printed = _run(*flags)
    assert code == 0, printed
    assert "adaptive: " in printed
    assert _config(mesh) == before
    with (tmp_path / "results" / "metrics-model-inference.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"1:CPU", "2:CPU"} <= {row["Instance Group"] for row in rows}
    assert (tmp_path / "reports" / "doubler.html").stat().st_size > 1_000_000
    # Again, from what was measured: nothing is.
    number = len(rows)
    code, printed = _run(*flags, "--resume")
    assert code == 0, printed
    assert f" {number} measurements" in printed
    checkpoint = tmp_path / "checkpoints" / "doubler.jsonl"
    document = tmp_path / "again.json"
    again = ("-e", str(tmp_path / "again"), f"--json={document}")
    code, printed = _run("report", f"--checkpoint={checkpoint}", *again)
    assert code == 0, printed
    (job,) = json.loads(document.read_text())["jobs"]
    assert job["is_finished"]
    assert len(job["measurements"]) == number
    assert job["winner"]["rate"] > 0
    assert (tmp_path / "again" / "reports" / "doubler.html").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_interrupted_restores_the_configuration_and_reports_what_was_measured(
    mesh: Mesh, tmp_path: Path, number: signal.Signals
) -> None:
    before = _config(mesh)
    flags = ("-m", "doubler", "-u", mesh.http, "-e", str(tmp_path), "--window=0.2", "--json")
    with subprocess.Popen(_argv(*flags), stdout=subprocess.PIPE, text=True) as process:
        # A candidate is loaded, and measured.
        until(lambda: _config(mesh)["max_batch_size"] != 16, "another configuration")
        checkpoint = tmp_path / "checkpoints" / "doubler.jsonl"
        until(lambda: checkpoint.exists() and checkpoint.read_text().count("\n") > 2, "a trial")
        process.send_signal(number)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == _INTERRUPTED
    (job,) = json.loads(printed)["jobs"]
    assert not job["is_finished"]
    assert job["measurements"][0]["requests_per_s"] > 0
    with (tmp_path / "results" / "metrics-model-inference.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(job["measurements"])
    assert _config(mesh) == before
    lines = checkpoint.read_text().splitlines()
    assert json.loads(lines[0])["title"] == "doubler"


def test_a_file_of_model_analyzers_searches_several_models(mesh: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "config.yml"
    file.write_text(
        f"""
triton_launch_mode: remote
client_protocol: grpc
triton_grpc_endpoint: {mesh.grpc}
triton_metrics_url: http://127.0.0.1:{mesh.metrics_port}/metrics
export_path: {tmp_path}
perf_analyzer_path: elsewhere
profile_models:
  doubler:
    parameters: {{concurrency: [4]}}
    model_config_parameters:
      max_batch_size: 32
      instance_group: [{{kind: KIND_CPU, count: [1, 2]}}]
  tripler:
    parameters: {{concurrency: 2}}
    model_config_parameters:
      dynamic_batching: {{max_queue_delay_microseconds: 100}}
"""
    )
    code, printed = _run("-f", str(file), "--window=0.05", "--rounds=1")
    assert code == 0, printed
    assert "perf_analyzer_path has no effect here" in printed
    assert "doubler: brute over 4 candidates" in printed
    assert "tripler: brute over 2 candidates" in printed
    # It was not loaded before.
    assert mesh.index()["tripler"].get("state") != "READY"
    assert _config(mesh)["max_batch_size"] == 16


def test_the_best_is_applied(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path / "log", *_EXPLICIT) as mesh:
        _apply_the_best(mesh, repository, tmp_path)


def _apply_the_best(mesh: Mesh, repository: Path, tmp_path: Path) -> None:
    # Without batches there is little to be had: whatever the machine, more are better.
    path = repository / "doubler" / "config.pbtxt"
    path.write_text(_CONFIG.replace("16", "1"))
    Server(Endpoint("http", mesh.http)).load_model("doubler")
    before = _config(mesh)
    file = tmp_path / "config.yml"
    file.write_text(
        f"""
triton_launch_mode: remote
client_protocol: http
triton_http_endpoint: {mesh.http}
model_repository: {repository}
export_path: {tmp_path}
profile_models:
  doubler:
    parameters: {{concurrency: [32]}}
    model_config_parameters: {{max_batch_size: [64]}}
"""
    )
    code, printed = _run(
        "-f", str(file), "--window=0.1", "--rounds=1", "--metrics-url=127.0.0.1:1/", "--apply"
    )
    assert code == 0, printed
    if "No candidate is better" in printed or "No difference" in printed:
        assert _config(mesh) == before
        return
    assert "Loaded doubler" in printed
    size = _config(mesh)["max_batch_size"]
    assert size > 1
    assert path.read_text() == _CONFIG.replace("16", str(size))
    backup = path.with_name("config.pbtxt.before-analyze-1")
    assert backup.read_text() == _CONFIG.replace("16", "1")


_SWEEP = """
triton_launch_mode: remote
client_protocol: http
triton_http_endpoint: {url}
model_repository: {repository}
export_path: {path}
run_config_search_max_instance_count: 1
run_config_search_max_model_batch_size: 8
concurrency: 4
profile_models: [doubler]
"""


def test_all_candidates_of_model_analyzers_file_batch_and_hold_what_clients_send(
    tmp_path: Path,
) -> None:
    # With all tensors given, the server adds no batcher.
    tensors = "".join(
        f'{kind} {{ name: "{kind.upper()}0" data_type: TYPE_FP32 dims: [ 8 ] }}\n'
        for kind in ("input", "output")
    )
    config = "max_batch_size: 8\ninstance_group { kind: KIND_CPU count: 1 }\n" + tensors
    repository = tmp_path / "repository"
    e2e_models.save_scaler(repository, "doubler", 2, config)
    file = tmp_path / "config.yml"
    with running(repository, tmp_path / "log", *_EXPLICIT) as mesh:
        with tritonclient.http.InferenceServerClient(mesh.http) as client:
            tensor = tritonclient.http.InferInput("INPUT0", [3, 8], "FP32")
            tensor.set_data_from_numpy(np.zeros((3, 8), np.float32))
            client.infer("doubler", [tensor])
        file.write_text(_SWEEP.format(url=mesh.http, repository=repository, path=tmp_path))
        code, printed = _run("-f", str(file), "--window=0.05", "--rounds=1")
    assert code == 0, printed
    assert "max_batch_size of doubler stays at 3 or more" in printed
    # The default has no batcher; the others do, with a largest batch of 4 and 8.
    assert "brute over 3 candidates" in printed
    for text in ("max_batch_size=8, delay_us=-1", "max_batch_size=4, delay_us=0"):
        assert text in printed
    assert "3 of at most 3: " in printed
    assert "best so far" in printed


def test_what_would_be_refused_is_said_and_not_applied(repository: Path, tmp_path: Path) -> None:
    path = repository / "doubler" / "config.pbtxt"
    # Eight clients wait for batches of 16 in vain; batches of 8 are full at once.
    config = _CONFIG.replace("{ }", "{ max_queue_delay_microseconds: 50000 }")
    path.write_text(config)
    file = tmp_path / "config.yml"
    with running(repository, tmp_path / "log", *_EXPLICIT) as mesh:
        file.write_text(
            f"""
triton_launch_mode: remote
client_protocol: http
triton_http_endpoint: {mesh.http}
model_repository: {repository}
export_path: {tmp_path}
profile_models:
  doubler:
    parameters: {{concurrency: [8]}}
    model_config_parameters: {{max_batch_size: [8]}}
"""
        )
        flags = ("-f", str(file), "--window=0.3", "--apply", "--metrics-url=127.0.0.1:1/")
        code, printed = _run(*flags)
        assert code == 1, printed
        assert "doubler would refuse requests of 9 to 16 rows" in printed
        assert "Nothing was written" in printed
        assert path.read_text() == config
        code, printed = _run(*flags, "--resume", "--yes")
        assert code == 0, printed
        assert path.read_text() == config.replace("16", "8")
        assert _config(mesh)["max_batch_size"] == 8


@pytest.mark.nightly
def test_a_target_that_cannot_be_kept_is_said_so(mesh: Mesh, tmp_path: Path) -> None:
    code, printed = _run(
        "-m", "doubler", "-u", mesh.http, "-e", str(tmp_path), *_QUICK,
        "--max-batch-size=2", "--target=p99=0.001ms",
    )  # fmt: skip
    assert code == _MISSED, printed
    assert "No candidate keeps perf_latency_p99 <= 0.001" in printed
    assert _config(mesh)["max_batch_size"] == 16


@pytest.mark.nightly
def test_models_that_share_the_machine(mesh: Mesh, tmp_path: Path) -> None:
    code, printed = _run(
        "-m", "doubler,tripler", "-u", mesh.http, "-e", str(tmp_path), *_QUICK, "--concurrently",
        "--max-batch-size=2", "--max-concurrency=2", "--max-candidates=2",
    )  # fmt: skip
    assert code == 0, printed
    assert "doubler_tripler: adaptive" in printed
    assert mesh.index()["tripler"].get("state") != "READY"


def test_a_mesh_of_its_own(repository: Path, tmp_path: Path) -> None:
    code, printed = _run(
        "-m", "doubler", "--launch-mode=local", f"--model-repository={repository}",
        "-e", str(tmp_path), *_QUICK, "--vary=instances", "--max-instances=1", "--executors=1,2",
        "--max-concurrency=1",
    )  # fmt: skip
    assert code == 0, printed
    # Each number of executors has its own mesh, and each has ended.
    assert "executors=2" in printed
    for line in subprocess.check_output(["ps", "-eo", "args"], text=True).splitlines():
        assert str(repository) not in line


def test_a_server_that_loads_nothing_is_refused(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path / "log") as found:
        code, printed = _run("-m", "doubler", "-u", found.http, "-e", str(tmp_path), *_QUICK)
    assert code == 1
    assert "explicit" in printed


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ((), "usage: nereid analyze"),
        (("-e", "out"), "--profile-models or --config-file"),
        (("-m", "a", "--target=p98=1ms"), "expected p50, p90, p95, p99 or avg"),
        (("-m", "a", "--vary=colour"), "expected some of instances"),
        (("-m", "a", "--apply"), "--apply needs --model-repository"),
        (("-m", "a", "--concurrently"), "name several"),
        (("-f", "/nowhere.yml"), "/nowhere.yml"),
    ],
)
def test_flags_that_cannot_be(
    flags: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the command runs, without a process for each."""
    code: object
    try:
        code = command.main(flags)
    except SystemExit as error:
        code = error.code
    assert code == _USAGE
    printed = capsys.readouterr()
    assert text in printed.out + printed.err


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    code, printed = _run("-m", "doubler", "-u", "127.0.0.1:1", "-e", str(tmp_path))
    assert code == 1
    assert "cannot ask 127.0.0.1:1" in printed
