"""What `nereid serve` plans: processes, their flags, their order."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nereid.mesh_auth.tokens import new_token

pytestmark = pytest.mark.slow


def plan(tmp_path: Path, *flags: str) -> dict[str, Any]:
    argv = [str(tmp_path), f"--model-repository={tmp_path}", "--executors=1", *flags]
    argv += ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    ran = subprocess.run(
        [sys.executable, "-m", "nereid.cli.serve.plan"],
        input=json.dumps(argv).encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    planned: dict[str, Any] = json.loads(ran.stdout)
    return planned


def test_gateways_of_a_group_differ_in_their_trace_files_alone(tmp_path: Path) -> None:
    traces = "--trace-config=triton,file=/tmp/t.json", "--trace-config=rate=5"
    planned = plan(tmp_path, "--gateways=3", "--reuse-http-port=true", *traces)
    gateways = [each for each in planned["children"] if each["name"] in planned["gateways"]]
    assert planned["gateways"] == [each["name"] for each in gateways]
    assert len(gateways) == 3
    files = []
    for each in gateways:
        argv = [flag for flag in each["argv"] if not flag.startswith("--trace-config=triton,file")]
        assert argv == [flag for flag in gateways[0]["argv"] if flag in argv]
        files.append([flag for flag in each["argv"] if flag not in argv][-1].rpartition("=")[2])
    assert files == ["/tmp/t.json", "/tmp/t.json.gateway-1", "/tmp/t.json.gateway-2"]
    names = [each["name"] for each in planned["children"] if each not in gateways]
    assert names == ["nereid.services.scheduler 0", "nereid.services.executor 0"]
    assert planned["reused"] == ["http"]
    assert planned["addresses"]["grpc"] == "0.0.0.0:0"


@pytest.mark.parametrize(
    ("flags", "gateway", "inherited"),
    [
        (("--join=none",), "nereid.services.gateway 0", ["http", "grpc", "metrics"]),
        (("--allow-metrics=false",), "nereid.cli.serve.joined 0", ["http", "grpc"]),
        # grpcio binds its port itself.
        (("--grpc-engine=grpcio",), "nereid.cli.serve.joined 0", ["http", "metrics"]),
    ],
    ids=["gateway", "joined", "grpcio"],
)
def test_a_lone_gateway_inherits_its_ports(
    tmp_path: Path, flags: tuple[str, ...], gateway: str, inherited: list[str]
) -> None:
    planned = plan(tmp_path, *flags)
    assert planned["gateways"] == [gateway]
    assert planned["gateways"] == [each["name"] for each in planned["children"]][:1]
    assert planned["inherited"] == inherited


def test_standbys_are_for_what_restarts_faster_with_them(tmp_path: Path) -> None:
    cache = "--cache-config=local,size=1024"
    planned = plan(tmp_path, "--join=none", "--standby", cache)
    standbys = [each["name"] for each in planned["children"] if each["standby"]]
    assert standbys == ["nereid.services.gateway 0", "nereid.services.scheduler 0"]
    planned = plan(tmp_path, cache)
    assert not any(each["standby"] for each in planned["children"])


def test_state_in_redis_needs_a_redis_and_a_token(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        plan(tmp_path, "--state-name=mine", "--cache-config=local,size=100")
    assert refused.value.returncode == 2
    errors = [line for line in refused.value.stderr.decode().splitlines() if "--state-name" in line]
    assert [error.partition("requires ")[2] for error in errors] == [
        "a cache in Redis (--cache-config=redis,host=...)",
        "the mesh's own token (--mesh-token-file)",
    ]
    token = tmp_path / "token"
    token.write_text(new_token())
    token.chmod(0o600)
    redis = "--cache-config=redis,host=h"
    planned = plan(tmp_path, "--state-name=mine", redis, f"--mesh-token-file={token}")
    # Not in the directory that is the default, too.
    assert {"--state-name=mine", "--state-directory="} <= set(planned["children"][0]["argv"])
